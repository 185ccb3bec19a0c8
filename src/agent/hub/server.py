"""The hub's process: an open catalogue, a queue server, and uvicorn around the app."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import click
import structlog
import uvicorn
from redis.exceptions import RedisError
from starlette.types import ASGIApp

from agent import kept, logs
from agent.errors import ConfigError
from agent.hub.alone import alone_on
from agent.hub.app import create_app
from agent.hub.catalogue import Catalogue
from agent.hub.file_tasks import use_engine, use_profile, use_sets
from agent.producer import Producer
from agent.redis_client import connect
from agent.settings import Settings, load_settings, secret_file
from pipelines.documents.addresses import networks_of

log = structlog.get_logger()

SHUTDOWN_TIMEOUT = 3
"""Seconds that open requests get at SIGTERM; loops and files need less than two more."""

BACKLOG = 2048
"""Connections that may wait to be taken (uvicorn's own default)."""

URL_FILE = "hub.url"


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. `data_dir / "hub.url"` holds the address while it listens.

    Raises ConfigError (no queue server, another hub on the same catalogue, an address that cannot be listened on) and
    CatalogueError.
    """
    address = settings.redis_address
    if address is None:
        raise ConfigError("PHAZE_REDIS_URL is not set; give the address of a Redis or Valkey server, or run `phaze up`")
    use_engine(settings.fingerprint_engine)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(alone_on(settings.data_dir))
        use_profile(settings.profile)
        use_sets(settings.set_minutes)
        catalogue = stack.enter_context(Catalogue(settings.data_dir))
        if settings.agent_token is not None:
            _let_in(catalogue, settings.agent_id, settings.agent_token.get_secret_value())
        listener = stack.enter_context(contextlib.closing(listen(settings.hub_host, settings.hub_port)))
        _must_have_a_password(settings, _is_loopback(listener))
        redis = connect(address)
        producer = Producer(redis)
        stopping = asyncio.Event()
        app = create_app(settings, catalogue, redis=redis, producer=producer, stopping=stopping)
        server = _Server(server_config(app, settings.hub_proxies), stopping)
        url = url_of(listener)
        url_file = stack.enter_context(_announced(settings.data_dir / URL_FILE, url))
        login = settings.hub_password is not None
        log.info("hub.started", url=url, catalogue=str(catalogue.path), url_file=str(url_file), login=login)
        try:
            await server.serve(sockets=[listener])
        finally:
            with contextlib.suppress(RedisError, OSError):
                async with asyncio.timeout(1):
                    await producer.close()
            log.info("hub.stopped")


def server_config(app: ASGIApp, proxies: str | None = None) -> uvicorn.Config:
    """How uvicorn serves the app. `proxies`: networks from which it is believed for whom somebody asks."""
    trusted = [str(network) for network in networks_of(proxies or "")]
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(trusted),  # anybody may say that he asks for somebody else
        forwarded_allow_ips=trusted,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
        timeout_keep_alive=65,  # above the relay's idle time, so that it is never closed under a request
    )


def _must_have_a_password(settings: Settings, loopback: bool) -> None:
    """Raises ConfigError where others than the people at this machine could reach pages without a login."""
    if settings.hub_password is None and (kept.in_container() or not loopback):
        raise ConfigError(
            f"PHAZE_HUB_PASSWORD is not set, without which the hub listens only on a loopback address and outside a "
            f"container (PHAZE_HUB_HOST={settings.hub_host}); set it or PHAZE_HUB_PASSWORD_FILE, or have one made with "
            "`phaze hub --first-start`"
        )


def _let_in(catalogue: Catalogue, agent_id: str, token: str) -> None:
    """The hub's own agent, unless it was revoked: a start must not bring it back."""
    if any(known.revoked for known in catalogue.known_agents() if known.id == agent_id):
        log.warning("agent.revoked", agent=agent_id, remedy=f"phaze agents rotate {agent_id}")
        return
    catalogue.register_agent(agent_id, token)


class _Server(uvicorn.Server):
    """uvicorn ends the process by the signal that stopped it; we still have files to close then. And it waits for
    answers to end, so those that would go on are told first."""

    def __init__(self, config: uvicorn.Config, stopping: asyncio.Event) -> None:
        super().__init__(config)
        self._stopping = stopping

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.set()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)


def listen(host: str, port: int) -> socket.socket:
    """A socket that takes connections from now on; port 0 takes a free one. Raises ConfigError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"PHAZE_HUB_HOST={host} is not an address of this machine ({error.strerror})") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(
                f"PHAZE_HUB_PORT={port} is taken on {host}; choose another, or 0 for a free one"
            ) from None
        raise ConfigError(
            f"PHAZE_HUB_HOST={host} PHAZE_HUB_PORT={port} cannot be listened on ({error.strerror})"
        ) from None
    return listener


def url_of(listener: socket.socket) -> str:
    """`http://127.0.0.1:8080`."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(listener: socket.socket) -> bool:
    """Whether only this machine can reach it."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


@contextlib.contextmanager
def _announced(file: Path, url: str) -> Iterator[Path]:
    """Write the address whole or not at all, and take it away at the end."""
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.write_text(f"{url}\n", "utf-8")
    draft.replace(file)
    try:
        yield file
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def with_secrets() -> Settings:
    """The settings, with a password and an agent's token even where none is set.

    They are made once: in the files that PHAZE_HUB_PASSWORD_FILE and PHAZE_AGENT_TOKEN_FILE name, else in the data
    folder. A new password is printed, this once. Raises ConfigError.
    """
    made = None
    wanted = {"hub_password": kept.HUB_PASSWORD, "agent_token": kept.AGENT_TOKEN}
    try:
        for name in wanted:
            if (file := secret_file(name)) is not None:
                new, is_new = kept.secret(Path(file))
                made = new if is_new and name == "hub_password" else made
        settings, found = load_settings(), {}
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        for name, file_name in wanted.items():
            if getattr(settings, name) is None:
                found[name], is_new = kept.secret(settings.data_dir / file_name)
                made = found[name] if is_new and name == "hub_password" else made
    except OSError as error:
        denied = isinstance(error, PermissionError)
        hint = " (another PHAZE_UID than before? see runbooks/first-start.md, 6)" if denied else ""
        raise ConfigError(
            f"{error.filename} cannot be used ({error.strerror}); the first start keeps secrets there: mend that{hint} "
            "or set PHAZE_HUB_PASSWORD and PHAZE_AGENT_TOKEN"
        ) from None
    if made is not None:
        click.echo(f"the hub's user is {settings.hub_user}, its password {made} (printed this once)")
    return load_settings(**found)


@click.command()
@click.option("--first-start", is_flag=True, help="Make a password and an agent's token where none is set.")
def hub(*, first_start: bool) -> None:
    """Run the hub until a signal: catalogue, reconciler, the agents' API and the pages.

    With --first-start it makes what is missing of PHAZE_HUB_PASSWORD and PHAZE_AGENT_TOKEN, keeps it in the files that
    PHAZE_HUB_PASSWORD_FILE and PHAZE_AGENT_TOKEN_FILE name, else in the data folder, and prints a new password once.
    """
    os.umask(0o077)  # the catalogue is this user's alone
    settings = with_secrets() if first_start else load_settings()
    logs.configure(settings.log_level, settings.log_format, part="hub")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(settings))
