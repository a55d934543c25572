"""nsqadmin in Python: its JSON API and its pages, with history, alerts and dead letters (docs/admin.rst).

::

    from gnsq_like.admin import AdminOptions, create_app

    app = create_app(AdminOptions(lookupd_http_addresses=("127.0.0.1:4161",)))     # a WSGI application

    flask_app.register_blueprint(make_blueprint(options), url_prefix="/nsq")        # or a part of your own

``gnsq-like admin`` runs it as a process. It needs the extra ``[admin]``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnsq_like._lazy import lazy_names

if TYPE_CHECKING:
    from gnsq_like.admin.admin_options import AdminOptions
    from gnsq_like.admin.serving import AdminServer
    from gnsq_like.admin.web.app import create_app, make_blueprint

__all__ = ["AdminOptions", "AdminServer", "create_app", "make_blueprint"]

if not TYPE_CHECKING:  # type checkers would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AdminOptions": "gnsq_like.admin.admin_options",
            "AdminServer": "gnsq_like.admin.serving",
            "create_app": "gnsq_like.admin.web.app",
            "make_blueprint": "gnsq_like.admin.web.app",
        },
    )
