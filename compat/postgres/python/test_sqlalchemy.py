"""SQLAlchemy: Core, ORM and reflection. Its dialect's compliance suite is in `dialect/`."""

import datetime
import decimal
import uuid

import pytest
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.dialects.postgresql import JSONB, insert


@pytest.fixture(scope="module")
def engine(url):
    engine = sa.create_engine(url)
    yield engine
    engine.dispose()


class Base(orm.DeclarativeBase):
    pass


class Author(Base):
    __tablename__ = "sa_author"
    id: orm.Mapped[int] = orm.mapped_column(sa.Identity(), primary_key=True)
    name: orm.Mapped[str] = orm.mapped_column(sa.String(40), unique=True)
    born: orm.Mapped[datetime.date | None]
    books: orm.Mapped[list["Book"]] = orm.relationship(
        back_populates="author",
        cascade="all, delete-orphan",
        primaryjoin=lambda: Author.id == orm.foreign(Book.author_id),
    )


class Book(Base):
    __tablename__ = "sa_book"
    id: orm.Mapped[uuid.UUID] = orm.mapped_column(primary_key=True, default=uuid.uuid4)
    author_id: orm.Mapped[int] = orm.mapped_column(index=True)
    title: orm.Mapped[str]
    price: orm.Mapped[decimal.Decimal] = orm.mapped_column(sa.Numeric(8, 2))
    more: orm.Mapped[dict] = orm.mapped_column(JSONB, default=dict)
    added: orm.Mapped[datetime.datetime] = orm.mapped_column(
        sa.DateTime(timezone=True), server_default=sa.func.now()
    )
    author: orm.Mapped[Author] = orm.relationship(
        back_populates="books", primaryjoin=lambda: orm.foreign(Book.author_id) == Author.id
    )


@pytest.fixture
def session(engine):
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with orm.Session(engine) as session:
        yield session


@pytest.fixture
def filled(session):
    ada = Author(name="Ada", born=datetime.date(1815, 12, 10))
    ada.books = [Book(title="Notes", price=10), Book(title="Letters", price=decimal.Decimal("7.50"), more={"a": [1]})]
    session.add_all([ada, Author(name="Bob", books=[Book(title="Tables", price=1)]), Author(name="Cid")])
    session.commit()
    return session


def test_core(engine):
    metadata = sa.MetaData()
    table = sa.Table(
        "sa_core",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("v", sa.String(10), nullable=False),
        sa.Column("n", sa.Double),
        sa.CheckConstraint("n > 0", name="sa_core_positive"),
    )
    metadata.drop_all(engine)
    metadata.create_all(engine)
    with engine.begin() as connection:
        done = connection.execute(table.insert().returning(table.c.id), [{"v": "a", "n": 1}, {"v": "b", "n": 2.5}])
        assert done.scalars().all() == [1, 2]
        upsert = insert(table).values(id=2, v="c", n=3)
        connection.execute(upsert.on_conflict_do_update(index_elements=["id"], set_={"v": upsert.excluded.v}))
        assert connection.execute(sa.select(table).order_by(table.c.id)).all() == [(1, "a", 1.0), (2, "c", 2.5)]
        assert connection.execute(table.update().where(table.c.id == 1).values(n=table.c.n * 2)).rowcount == 1
        total = sa.select(sa.func.sum(table.c.n), sa.func.count()).where(table.c.v.in_(["a", "c", "x"]))
        assert connection.execute(total).one() == (4.5, 2)
    with pytest.raises(sa.exc.IntegrityError), engine.begin() as connection:
        connection.execute(table.insert().values(id=3, v="d", n=-1))
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == 2
        with connection.begin_nested() as nested:
            connection.execute(table.delete())
            nested.rollback()
        assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == 2
    many = [{"id": number, "v": str(number), "n": number} for number in range(10, 2_010)]
    with engine.begin() as connection:
        connection.execute(table.insert(), many)
    with engine.connect() as connection:
        assert connection.scalar(sa.select(sa.func.count()).select_from(table)) == 2_002


def test_orm(filled):
    ada = filled.scalars(sa.select(Author).where(Author.name == "Ada")).one()
    assert sorted(book.title for book in ada.books) == ["Letters", "Notes"]
    assert {book.title: book.more for book in ada.books} == {"Notes": {}, "Letters": {"a": [1]}}
    assert all(book.added.tzinfo for book in ada.books)
    ada.name = "Ada Lovelace"
    ada.books[0].price += 1
    filled.commit()
    del ada.books[0]
    filled.commit()
    assert len(ada.books) == 1
    filled.delete(ada)
    filled.commit()
    assert filled.scalars(sa.select(Book.title)).all() == ["Tables"]
    filled.add(Author(name="Bob"))
    with pytest.raises(sa.exc.IntegrityError):
        filled.commit()
    filled.rollback()
    assert filled.scalar(sa.select(sa.func.count()).select_from(Author)) == 2


def test_orm_queries(filled):
    joined = sa.select(Author.name, Book.title).join(Author.books).order_by(Author.name, Book.title)
    assert filled.execute(joined).all() == [("Ada", "Letters"), ("Ada", "Notes"), ("Bob", "Tables")]
    prices = sa.func.coalesce(sa.func.sum(Book.price), 0)
    grouped = sa.select(Author.name, sa.func.count(Book.id), prices).outerjoin(Author.books)
    grouped = grouped.group_by(Author.name).having(sa.func.count(Book.id) < 2).order_by(Author.name)
    assert filled.execute(grouped).all() == [("Bob", 1, 1), ("Cid", 0, 0)]
    with_books = sa.select(Author).where(Author.books.any(Book.price > 5))
    assert [author.name for author in filled.scalars(with_books)] == ["Ada"]
    for load in [orm.selectinload, orm.joinedload, orm.subqueryload]:
        filled.expire_all()
        authors = filled.scalars(sa.select(Author).options(load(Author.books)).order_by(Author.name)).unique().all()
        assert [len(author.books) for author in authors] == [2, 1, 0]
    ranked = sa.func.row_number().over(partition_by=Book.author_id, order_by=Book.price.desc())
    best = sa.select(Book.title, ranked.label("place")).subquery()
    assert sorted(filled.scalars(sa.select(best.c.title).where(best.c.place == 1))) == ["Notes", "Tables"]


def test_reflection(filled, engine):
    inspector = sa.inspect(engine)
    assert {"sa_author", "sa_book"} <= set(inspector.get_table_names())
    assert inspector.has_table("sa_author") and not inspector.has_table("sa_nosuch")
    columns = {column["name"]: column for column in inspector.get_columns("sa_book")}
    assert list(columns) == ["id", "author_id", "title", "price", "more", "added"]
    assert isinstance(columns["price"]["type"], sa.Numeric) and columns["price"]["type"].scale == 2
    assert isinstance(columns["more"]["type"], JSONB) and not columns["title"]["nullable"]
    assert "now()" in columns["added"]["default"]
    assert inspector.get_pk_constraint("sa_author")["constrained_columns"] == ["id"]
    indexes = {index["name"]: index for index in inspector.get_indexes("sa_book")}
    assert indexes["ix_sa_book_author_id"]["column_names"] == ["author_id"]
    unique = inspector.get_unique_constraints("sa_author")
    assert [constraint["column_names"] for constraint in unique] == [["name"]]
    reflected = sa.MetaData()
    reflected.reflect(engine, only=["sa_author"])
    assert reflected.tables["sa_author"].c.name.type.length == 40
