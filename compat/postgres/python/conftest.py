"""The servers come from libpq's variables: PGHOST and PGPORT are lists."""

import os

import psycopg
import pytest


@pytest.fixture
def connection():
    with psycopg.connect(autocommit=True) as connection:
        yield connection


@pytest.fixture(scope="session")
def url():
    """For SQLAlchemy: the first host, the others as parameters."""
    ports = os.environ["PGPORT"].split(",")
    hosts = "&".join(f"host=127.0.0.1:{port}" for port in ports)
    return f"postgresql+psycopg://postgres@/{os.environ['PGDATABASE']}?{hosts}"
