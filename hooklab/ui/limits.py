"""How much a request may bring. FastAPI has such a limit too, but not in the releases for Python 3.10."""

from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse


class BodyLimit:
    """ASGI middleware: a body of more than `limit` bytes is answered 413, announced or sent piece by piece."""

    def __init__(self, app, limit: int):
        self.app = app
        self.limit = limit
        self.words = f"at most {limit} bytes are accepted"

    async def __call__(self, scope, receive, send):
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self.limit:
            return await PlainTextResponse(self.words, 413)(scope, receive, send)
        received = 0

        async def counted():
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self.limit:
                raise HTTPException(413, self.words)  # out of the route that reads, which stops reading
            return message

        return await self.app(scope, counted, send)
