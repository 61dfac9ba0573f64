"""A body that is too large is refused before it is read, on every release of FastAPI."""

import pytest
from fastapi import FastAPI, Request
from starlette.middleware import Middleware
from starlette.testclient import TestClient

from hooklab.ui.limits import BodyLimit


@pytest.fixture
def client():
    app = FastAPI(middleware=[Middleware(BodyLimit, limit=1000)])

    @app.post("/raw")
    async def raw(request: Request):
        return len(await request.body())

    @app.post("/json")
    async def parsed(values: list[int]):
        return len(values)

    return TestClient(app)


@pytest.mark.parametrize("path, size, answer", [("/raw", 1000, 1000), ("/json", 999, 499), ("/json", 3, 1)])
def test_a_body_within_the_limit_arrives_whole(client, path, size, answer):
    body = b"x" * size if path == "/raw" else b"[" + b",".join([b"1"] * answer) + b"]"
    headers = {"content-type": "application/json"}
    for content in (body, iter([body[:7], body[7:]])):
        response = client.post(path, content=content, headers=headers)
        assert (response.status_code, response.json()) == (200, answer)


@pytest.mark.parametrize("path", ["/raw", "/json"])
@pytest.mark.parametrize("size", [1001, 100_000])
def test_a_larger_body_is_refused(client, path, size):
    body = b"[" + b"1" * (size - 2) + b"]"
    for content in (body, iter([body[:500], body[500:]])):
        response = client.post(path, content=content, headers={"content-type": "application/json"})
        assert response.status_code == 413
        assert "at most 1000 bytes are accepted" in response.text


def test_a_false_length_does_not_help(client):
    response = client.post("/raw", content=iter([b"x" * 5000]), headers={"content-length": "10"})
    assert response.status_code == 413
