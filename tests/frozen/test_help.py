"""The command line as a user knows it: every command with its arguments, options, types and defaults.

A command or option that is renamed, added or dropped shows up here; `EQUIAV_REFREEZE=1` then takes it over.
"""

import inspect
import typing
from pathlib import Path

from tests.frozen import api2


def plain(annotation):
    """The name of a type inside optional and list."""
    inner = [plain(part) for part in typing.get_args(annotation) if part is not type(None)]
    return inner[0] if inner else annotation.__name__


def described(parameter, hints):
    """What of an argument or option a caller depends on; help texts are free."""
    holder = getattr(parameter, "type", parameter)  # of bounds; it differs between versions of typer
    bounds = {name: value for name in ("min", "max") if (value := getattr(holder, name, None)) is not None}
    default = str(parameter.default) if isinstance(parameter.default, Path) else parameter.default
    facts = {
        "required": parameter.required,
        "flag": getattr(parameter, "is_flag", False),
        "repeated": getattr(parameter, "multiple", False) or parameter.nargs != 1,
    }
    told = [name for name, holds in facts.items() if holds]
    return {"type": plain(hints[parameter.name]), **bounds, **dict.fromkeys(told, True), "default": default}


def walk(command, path="equiav"):
    """Every command below this one, and every parameter: arguments by their place, options by all their names."""
    hints = typing.get_type_hints(inspect.unwrap(command.callback)) if command.callback else {}
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    yield path, {"arguments": [p.name for p in arguments]}
    for p in command.params:
        names = p.name if p in arguments else " ".join(sorted([*p.opts, *p.secondary_opts]))
        yield f"{path} {names}", described(p, hints)
    for name, part in getattr(command, "commands", {}).items():
        yield from walk(part, f"{path} {name}")


def test_every_command_and_option():
    api2.frozen("help_commands.json", dict(walk(api2.root_command())))


def test_every_command_and_option_has_a_help_text():
    def missing(command, path="equiav"):
        if not command.help:
            yield path
        yield from (f"{path} {p.name}" for p in command.params if not getattr(p, "help", None))
        for name, part in getattr(command, "commands", {}).items():
            yield from missing(part, f"{path} {name}")

    assert list(missing(api2.root_command())) == []
