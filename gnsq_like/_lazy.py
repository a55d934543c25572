"""Names of a package that are loaded at first use (PEP 562).

So importing one class does not load the whole package, and none of our packages loads gevent, requests or ssl before an
application could patch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` for a package's ``__init__``, to be assigned ``if not TYPE_CHECKING``.

    :param package: the package's ``__name__``
    :param modules: for each public name, the module that defines it; for a public module, the module itself
    """

    def __getattr__(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(modules[name])
        value = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def __dir__() -> list[str]:
        present = vars(sys.modules[package])
        loaded = {
            name
            for name, value in present.items()
            if name.startswith("__") or (isinstance(value, ModuleType) and not name.startswith("_"))
        }
        return sorted({*loaded, *present["__all__"], *modules})

    return __getattr__, __dir__
