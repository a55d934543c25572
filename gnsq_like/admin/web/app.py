"""The application: every request passes the checks, then goes to the API or to a page."""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Any

from gnsq_like.admin.admin_options import AdminOptions

try:
    from flask import Blueprint, Flask, Response, g, redirect, request

    from gnsq_like.admin.web.metrics import Monitoring
except ModuleNotFoundError as exc:
    raise ModuleNotFoundError(
        f"{(exc.name or '').partition('.')[0]} is not installed: install the extra [admin]",
        name=exc.name,
    ) from exc

from werkzeug.exceptions import HTTPException, MethodNotAllowed, RequestEntityTooLarge

from gnsq_like.admin.web.api import API
from gnsq_like.admin.web.configuration import configure
from gnsq_like.admin.web.pages import (
    act,
    activity,
    channel,
    counter,
    letters,
    lookup,
    node,
    nodes,
    peek,
    topic,
    topics,
)
from gnsq_like.admin.web.passwords import SESSION_COOKIE, SESSION_SECONDS, TooManyTries
from gnsq_like.admin.web.replies import compress, is_missing, not_found, problem, response_of
from gnsq_like.admin.web.screens import Screens
from gnsq_like.admin.web.site import Site
from gnsq_like.httpd.wsgi import respond

logger = logging.getLogger(__name__)

ROUTES = [
    *(topics.ROUTE, topic.ROUTE, topic.PUBLISH, channel.ROUTE, nodes.ROUTE, node.ROUTE, counter.ROUTE, lookup.ROUTE),
    *(activity.ROUTE, peek.ROUTE, letters.ROUTE, act.ROUTE),
]

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_SAFE = ("GET", "HEAD", "OPTIONS")
#: The prefix of a further cluster's routes.
_CLUSTER = "/clusters/<cluster>"
#: Longest body of a request, in bytes: a published message, and the rest of its form.
_MOST_BYTES = 8 * 1024 * 1024


def create_app(options: AdminOptions) -> Flask:
    """A WSGI application. Nothing is asked or started before the first request in a process.

    With gunicorn, run one worker with threads: figures for graphs and shown messages belong to one process.

    :raises InvalidOption: if a file that an option names cannot be used
    """
    return app_of(Site(options))


def app_of(site: Site) -> Flask:
    """The application of a site."""
    app = Flask("gnsq_like.admin", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = _MOST_BYTES
    app.register_blueprint(blueprint_of(site), url_prefix=site.options.base_path.rstrip("/") or None)
    app.extensions["gnsq_like_admin"] = site
    app.register_error_handler(HTTPException, _http_error)
    return app


def _http_error(exc: HTTPException) -> Any:
    """nsqadmin's responses to requests that match no route."""
    if isinstance(exc, MethodNotAllowed) and not is_missing(request.path):
        response = problem(405, "METHOD_NOT_ALLOWED")
        response.headers["Allow"] = ", ".join(sorted(exc.valid_methods or ()))
        return not_found(response)
    return not_found() if exc.code in (404, 405) else exc


def make_blueprint(options: AdminOptions) -> Blueprint:
    """The admin as a part of your own Flask application, which you register with a ``url_prefix``.

    :raises InvalidOption: if a file that an option names cannot be used
    """
    return blueprint_of(Site(options))


class _AdminBlueprint(Blueprint):
    #: To stop its thread: ``site.core.stop()``.
    site: Site


def blueprint_of(site: Site) -> Blueprint:
    """The blueprint of a site."""
    blueprint = _AdminBlueprint("nsq_admin", __name__)
    blueprint.site = site
    routes = _Routes(site, blueprint)
    routes.add_api()
    routes.add_pages()
    blueprint.before_request(routes.check)
    blueprint.after_request(routes.finish)
    return blueprint


class _Routes:
    def __init__(self, site: Site, blueprint: Blueprint) -> None:
        self._site = site
        self._blueprint = blueprint
        self._screens = Screens(site)
        blueprint.url_value_preprocessor(self._choose_cluster)

    def _choose_cluster(self, _endpoint: str | None, values: dict[str, object] | None) -> None:
        name = (values or {}).pop("cluster", None)
        clusters = self._site.core.clusters
        g.cluster = name if name is not None else next(iter(clusters))
        g.cluster_is_known = g.cluster in clusters
        g.in_cluster = name is not None

    def check(self) -> Response | None:
        """Refuse a request from another site, to an unexpected host, or without the right password."""
        site = self._site
        if not site.guard.is_host_right(request):
            name = request.headers.get("Host", "")[:100]
            return problem(421, f"INVALID_HOST: {name!r} is not a name of this admin; see --allowed-host")
        if (request.endpoint or "").endswith(".ping"):
            return None
        if not g.cluster_is_known:
            return problem(404, "NOT_FOUND")
        try:
            g.identity = site.identities.of(request)
        except TooManyTries as exc:
            response = problem(429, "TOO_MANY_TRIES")
            response.headers["Retry-After"] = str(math.ceil(exc.seconds))
            return response
        if not g.identity.is_authenticated:
            response = problem(401, "UNAUTHORIZED")
            response.headers["WWW-Authenticate"] = 'Basic realm="nsqadmin", charset="UTF-8"'
            return response
        if request.method in _SAFE:
            return None
        if not site.guard.is_same_site(request):
            logger.warning("refused a %s of %s from another site", request.method, request.path)
            return problem(403, "FORBIDDEN: the request comes from another site")
        try:
            request.get_data()  # nothing is done before the body is whole
        except RequestEntityTooLarge:
            return problem(413, "BODY_TOO_BIG")
        return None

    def finish(self, response: Response) -> Response:
        """Add the headers that all responses have."""
        identity, passwords = g.get("identity"), self._site.identities.passwords
        if identity is not None and identity.is_new and passwords is not None:
            response.set_cookie(
                SESSION_COOKIE,
                passwords.session(identity.user),
                path=request.script_root + "/",
                max_age=SESSION_SECONDS,
                httponly=True,
                samesite="Strict",
                secure=request.is_secure,
            )
        self._site.guard.set_headers(response)
        compress(request, response)
        return response

    def add_api(self) -> None:
        """The API, /metrics, /healthz, /ping, /config, and a 404 for all other paths."""
        api = API(self._site)
        for path in api.routes:
            self._add(f"/api{path}", f"api{path}", partial(api.answer, path))
        monitoring = Monitoring(self._site)
        self._page("/metrics", "metrics", monitoring.metrics)
        self._page("/healthz", "healthz", monitoring.health)
        self._add("/config/<name>", "config", self._config)
        self._blueprint.add_url_rule("/ping", "ping", lambda: Response("OK", content_type="text/plain; charset=utf-8"))
        self._add("/api/<path:path>", "api_other", self._other)

    def add_pages(self) -> None:
        """The pages, their forms, and the static files."""
        screens = self._screens
        for route in ROUTES:
            methods = [*(["GET"] if route.make else []), *(["POST"] if route.post else [])]
            self._page(route.rule, route.endpoint, partial(screens.answer, route), *methods)
        self._page("/static/<name>", "static", self._static)
        self._page("/fonts/<name>", "fonts", self._static)
        self._page("/", "start", lambda: redirect(screens.renderer.link("topics")))
        self._page("/<path:path>", "missing", self._missing)

    def _static(self, name: str) -> Response:
        return self._screens.renderer.assets.response(name) or problem(404, "NOT_FOUND")

    def _page(self, rule: str, endpoint: str, function: Any, *methods: str) -> None:
        for prefix, name in (("", endpoint), (_CLUSTER, f"{endpoint} of a cluster")):
            self._blueprint.add_url_rule(f"{prefix}{rule}", name, function, methods=methods or ("GET",))

    def _add(self, rule: str, endpoint: str, function: Any) -> None:
        for prefix, name in (("", endpoint), (_CLUSTER, f"{endpoint} of a cluster")):
            self._blueprint.add_url_rule(
                f"{prefix}{rule}", name, function, methods=_METHODS, provide_automatic_options=False
            )

    def _config(self, name: str) -> Response:
        functions = dict.fromkeys(("GET", "HEAD", "PUT"), configure)
        return response_of(respond(functions, request.method, lambda act: act(self._site, name), request.path))

    def _missing(self, path: str) -> Any:
        return not_found(self._screens.missing(path))

    def _other(self, path: str) -> Any:
        if path.endswith("/") and path.strip("/"):
            return redirect(request.path.rstrip("/"), 301 if request.method == "GET" else 307)
        return not_found()
