"""SQLAlchemy's pytest plugin, and the list of expected failures: a failure that is not listed fails the run, and so does a
listed test that passes. Foreign keys are omitted from the tables of the tests, as in an application for Loggos."""

import pathlib

import pytest
from sqlalchemy import ForeignKeyConstraint
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.ddl import SetConstraintComment

pytest.register_assert_rewrite("sqlalchemy.testing.assertions")

from sqlalchemy.testing.plugin.pytestplugin import *  # noqa: E402, F401, F403
from sqlalchemy.testing.plugin import pytestplugin  # noqa: E402


@compiles(ForeignKeyConstraint, "postgresql")
@compiles(SetConstraintComment, "postgresql")
def without_foreign_keys(element, compiler, **arguments):
    if isinstance(element, ForeignKeyConstraint):
        return None
    if isinstance(element.element, ForeignKeyConstraint):
        return "SELECT 1"
    return compiler.visit_set_constraint_comment(element, **arguments)


def listed():
    """Lines of `TEST: reason`; a test is `Class.test`, or `Class` for all of a class."""
    found = {}
    for line in (pathlib.Path(__file__).parent / "expected-failures").read_text().splitlines():
        if line and not line.startswith("#"):
            name, _, reason = line.partition(": ")
            found[name] = reason
    return found


def pytest_collection_modifyitems(session, config, items):
    pytestplugin.pytest_collection_modifyitems(session, config, items)
    is_strict = not config.getoption("--lenient")
    reasons = listed()
    for item in items:
        # The plugin adds the database to the names of classes.
        of_class = item.cls.__name__.split("_")[0] if item.cls else ""
        for name in (of_class, f"{of_class}.{item.originalname}", f"{of_class}.{item.name}"):
            if name in reasons:
                item.add_marker(pytest.mark.xfail(reason=reasons[name], strict=is_strict))


def pytest_addoption(parser):
    pytestplugin.pytest_addoption(parser)
    parser.addoption("--lenient", action="store_true", help="expected failures may pass")
