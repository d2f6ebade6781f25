//! What a published view of any kind answers.

use base::KeyRange;

use super::*;

impl View {
    /// The read of this view for a request; `None` if the view can't answer it.
    #[must_use]
    pub fn read(&self, ask: &Ask) -> Option<Read> {
        fn of<M: Hosted>(view: &View, ask: &Ask) -> Option<Read> {
            M::viewed(view)?.read(M::request(ask)?).map(M::question)
        }
        by_kind!(ask.kind(), M => of::<M>(self, ask), _ => None)
    }

    /// The data as of an earlier timestamp.
    ///
    /// # Errors
    /// [`Failure::Precondition`] for a timestamp that is no longer retained, [`Failure::Unavailable`] for one not reached
    /// yet.
    pub fn at(self, moment: Timestamp) -> Result<Self, Failure> {
        dispatch!(Self, self, M, view => view.at(moment).map(<M as Hosted>::shown))
    }

    /// The timestamp of the state that it shows.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        dispatch!(Self, self, view => view.timestamp())
    }

    /// The keys that it holds, if it is a range of a table.
    #[must_use]
    pub fn range(&self) -> Option<&KeyRange> {
        dispatch!(Self, self, view => view.range())
    }

    /// Whether no transaction is prepared in it.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        dispatch!(Self, self, view => view.is_settled())
    }

    /// Whether another view of the same replica has the same content.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        dispatch!(Self, self, M, view => <M as Hosted>::viewed(other).is_some_and(|other| view.is_same(other)))
    }

    /// The catalog, if it is a view of the first cohort.
    #[must_use]
    pub fn as_catalog(&self) -> Option<&Catalog> {
        if let Self::Catalog(catalog) = self { Some(catalog) } else { None }
    }
}
