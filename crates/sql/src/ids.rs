//! Identifiers of schema objects. All objects of a database share one sequence of numbers. No number is used twice, so
//! that keys of dropped objects are not confused with later ones.

macro_rules! identifiers {
    ($($(#[$doc:meta])* $name:ident),*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        base::wire! { newtype $name }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

identifiers! {
    TableId,
    IndexId,
    /// A column, unique in its table. It is the column's name in the store.
    ColumnId,
    SequenceId,
    ViewId
}
