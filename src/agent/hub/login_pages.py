"""The form in which a person shows the password, and the way out."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from agent.hub.guard import refused, too_many
from agent.hub.limits import read_body
from agent.hub.login import SESSION_SECONDS, Login, TooManyFailures, address_of
from agent.hub.templating import templates

MAX_FORM = 8 * 2**10
"""Bytes of a form."""

NO_STORE = {"cache-control": "no-store"}


async def form(request: Request) -> Response:
    """GET /login?next=/path."""
    if not _login(request).required:
        return RedirectResponse("/", 303, NO_STORE)
    return _page(request, _within(request.query_params.get("next", "")))


async def enter(request: Request) -> Response:
    """POST user, password, next: a session, and on to `next`; 401 with the form again; 429."""
    login, given = _login(request), await _fields(request)
    going = _within(given.get("next", ""))
    try:
        right = login.check(given.get("user", ""), given.get("password", ""), address_of(request))
    except TooManyFailures as error:
        return too_many(request, error)
    if not right:
        return _page(request, going, "This is not the user and the password.", 401)
    answer = RedirectResponse(going, 303, NO_STORE)
    # The browser knows whether it came by https, also where a proxy ends that before us.
    secure = request.headers.get("origin", "").startswith("https:")
    session = login.new_session()
    answer.set_cookie(login.cookie, session, SESSION_SECONDS, secure=secure, httponly=True, samesite="strict")
    return answer


async def leave(request: Request) -> Response:
    """POST token: this browser's session is over."""
    login, given = _login(request), await _fields(request)
    try:
        who = login.who(request)
    except TooManyFailures as error:
        return too_many(request, error)
    if who is not None and not login.accepts(who, given.get("token", "")):
        return refused(request, 403, "log out with the button on the page")
    answer = RedirectResponse("/login", 303, NO_STORE)
    answer.delete_cookie(login.cookie, httponly=True, samesite="strict")
    return answer


def _login(request: Request) -> Login:
    found: Login = request.app.state.login
    return found


def _page(request: Request, going: str, problem: str = "", status: int = 200) -> Response:
    context = {"going": going, "problem": problem}
    return templates.TemplateResponse(request, "login.html", context, status, NO_STORE)


async def _fields(request: Request) -> dict[str, str]:
    body = await read_body(request, MAX_FORM)
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=10)
    except ValueError:
        raise HTTPException(400, "the form has too many fields") from None
    return {name: values[-1] for name, values in fields.items()}


def _within(path: str) -> str:
    """The path, if it stays on this hub (`//elsewhere` and `/\\elsewhere` would not), else /."""
    inside = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable()
    return path if inside else "/"


routes = [
    Route("/login", form, methods=["GET"]),
    Route("/login", enter, methods=["POST"]),
    Route("/logout", leave, methods=["POST"]),
]
