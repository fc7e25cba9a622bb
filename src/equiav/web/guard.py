"""The one way from a visitor's request to an error on the page: people's mistakes are told, bugs go to the log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any

import gradio as gr

from equiav.errors import EquiAVError, MediaError
from equiav.web.service import BROKEN

log = logging.getLogger(__name__)

QUIET: dict[str, Any] = {"print_exception": False}  # what a visitor did wrong is not for the log
Handler = Callable[..., str]
Guard = Callable[[Handler], Handler]


def guarded(work: Handler, checked: Callable[[Any], Any] = lambda value: value) -> Handler:
    """A handler whose values come in through `checked`; errors go out as people should see them, bugs to the log."""

    @wraps(work)
    def handler(*values: Any) -> str:
        try:
            return work(*(None if value is None else checked(value) for value in values))
        except MediaError as error:
            raise gr.Error(f"{error.path.name}: {error.reason}", **QUIET, title="This file cannot be used") from None
        except EquiAVError as error:
            raise gr.Error(str(error), **QUIET, title="This cannot be done") from None
        except Exception:
            log.exception("%s failed", getattr(work, "__name__", "a request"))
            raise gr.Error(BROKEN, **QUIET) from None

    return handler
