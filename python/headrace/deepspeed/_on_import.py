# SPDX-License-Identifier: Apache-2.0
"""Work that is due as soon as another package has been imported."""
from __future__ import annotations

import importlib.abc
import importlib.util
import sys
import types
from typing import Any, Callable

Work = Callable[[types.ModuleType], None]


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, work: Work) -> None:
        self.name, self._work, self._asked = name, work, False

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Programs ask for a spec without importing it too."""
        if name != self.name or self._asked:
            return None
        self._asked = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._asked = False
        if spec is None or spec.loader is None:
            return spec
        own = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            own(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._work(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def when_imported(name: str, work: Work) -> None:
    """At once, if it is imported already. Asked for twice, it is done once."""
    module = sys.modules.get(name)
    if module is not None:
        work(module)
    elif not any(isinstance(finder, _Finder) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(name, work))
