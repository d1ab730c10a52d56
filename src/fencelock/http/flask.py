"""Flask: the WSGI middleware, and an error handler, since Flask answers 500 to what a handler raises.

Promise: a guard's error in a view becomes the same problem as elsewhere, unless a blueprint handles all exceptions
itself. Never: Flask imported here.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from fencelock._api.base_guard import BaseGuard
from fencelock.errors import FencelockError
from fencelock.http.frameworks import check_flask
from fencelock.http.service import Required, current_request, needs_token
from fencelock.http.wsgi import WSGIFencingMiddleware


class FlaskLike(Protocol):
    """What is asked of a Flask application."""

    @property
    def wsgi_app(self) -> Any:
        """The WSGI application inside, which middleware replaces."""

    def register_error_handler(self, code_or_exception: Any, f: Any) -> None:
        """Have `f` answer an error of this class."""


def init_flask(
    app: FlaskLike, *, lock: str | None = None, required: Required = needs_token, guards: Iterable[BaseGuard] = ()
) -> None:
    """Fence a Flask application: add the middleware, and answer a guard's errors in its views as problems.

    The arguments are those of `FencingMiddleware`. Call it once, before the application answers.
    """
    check_flask(app)
    for kind in (FencelockError, ExceptionGroup):
        app.register_error_handler(kind, _answer)
    replaced: Any = app  # Flask's own way of adding middleware assigns to what is typed as a method.
    replaced.wsgi_app = WSGIFencingMiddleware(app.wsgi_app, lock=lock, required=required, guards=guards)


def _answer(error: Exception) -> tuple[bytes, int, list[tuple[str, str]]]:
    answer = current_request().answer_to(error)
    if answer is None:
        raise error
    return answer.body, answer.status, answer.headers
