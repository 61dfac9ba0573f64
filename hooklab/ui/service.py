"""One door to the model for everybody: admits a bounded number of requests, and gives every one an answer."""

import itertools
import logging
from collections.abc import Callable, Mapping

import anyio

from hooklab.lab import Lab
from hooklab.ui.question import Refusal

log = logging.getLogger("hooklab")


class Service:
    """Runs views (`view(labs, request) -> dict`) in a few threads; the page and the API both come through here.

    `heavy` views, those that ask a model hundreds of questions, share one thread of their own: however many of them
    wait, a class that steps from picture to picture does not wait behind them.
    """

    def __init__(
        self,
        labs: Mapping[str, Lab],
        views: Mapping[str, Callable],
        heavy: frozenset[str] = frozenset(),
        workers: int = 2,
        waiting: int = 200,
    ):
        self.labs, self.views, self.heavy = labs, views, heavy
        self.workers, self.waiting = workers, waiting
        self._limiters = None  # made in the event loop that will use them
        self._inside = 0
        self._numbers = itertools.count(1)

    async def ask(self, view: str, request: object) -> dict:
        """{"ok": what the view answered} or {"error": {"code", "values", "message"}}; never raises."""
        if self._inside >= self.waiting:
            return _error("busy", "many people are asking at once; try again in a moment")
        self._inside += 1
        try:
            self._limiters = self._limiters or [anyio.CapacityLimiter(self.workers), anyio.CapacityLimiter(1)]
            limiter = self._limiters[view in self.heavy]
            return {"ok": await anyio.to_thread.run_sync(self.views[view], self.labs, request, limiter=limiter)}
        except Refusal as refusal:
            return _error(refusal.code, str(refusal), refusal.values)
        except ValueError as error:  # the core's own refusal: it names the value and what is accepted
            return _error("value", str(error), {"message": str(error)})
        except Exception:  # whatever a view meets, the asker gets an answer, and the trace stays in the log
            number = next(self._numbers)
            log.exception("error %d in view %s", number, view)
            return _error("unknown", f"something went wrong, number {number}", {"number": number})
        finally:
            self._inside -= 1


def _error(code: str, message: str, values: dict | None = None) -> dict:
    return {"error": {"code": code, "values": values or {}, "message": message}}
