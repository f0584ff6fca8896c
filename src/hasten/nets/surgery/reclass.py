"""Changes a module's forward by changing its class: parameters, names and hooks stay."""

from __future__ import annotations

import copyreg
from functools import cache
from typing import Any

from torch import nn


class ClassSwap:
    """Base of mixins that are put in front of a module's class. Such a module can be deep-copied and pickled."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced: Any = super().__reduce_ex__(protocol)
        constructor, _, *rest = reduced
        assert constructor is copyreg.__newobj__  # type: ignore[attr-defined]
        # pickle can't find the class by name.
        return (_empty, _parts(type(self)), *rest)


def swap_class(module: nn.Module, mixin: type[ClassSwap]) -> bool:
    """Put `mixin` in front of the module's class, in place. False if it is there already."""
    if isinstance(module, mixin):
        return False
    parts: tuple[Any, Any] = (mixin, type(module))
    module.__class__ = _mixed(*parts)
    return True


def base_class(module: nn.Module) -> type[nn.Module]:
    """The class that the module had before `swap_class`."""
    return _parts(type(module))[0]


def original(module: nn.Module) -> None:
    """Restore the class that the module had before `swap_class`."""
    module.__class__ = base_class(module)


def remove(module: nn.Module, mixin: type[ClassSwap]) -> None:
    """Take one mixin away from the module's class, in place; the others stay."""
    kind, *mixins = _parts(type(module))
    for each in mixins:
        kind = kind if each is mixin else _mixed(each, kind)
    module.__class__ = kind


@cache
def _mixed(mixin: Any, base: Any) -> Any:
    name = mixin.__name__.lstrip("_") + base.__name__
    return type(name, (mixin, base), {"__module__": base.__module__, "_mixed_of": (mixin, base)})


def _parts(kind: type) -> tuple[Any, ...]:
    """The original class, and the mixins in the order in which they were added."""
    mixins = []
    while "_mixed_of" in vars(kind):
        mixin, kind = vars(kind)["_mixed_of"]
        mixins.append(mixin)
    return kind, *reversed(mixins)


def _empty(base: type[nn.Module], *mixins: Any) -> nn.Module:
    kind: Any = base
    for mixin in mixins:
        kind = _mixed(mixin, kind)
    return kind.__new__(kind)
