"""`/config_info` of Judge0: what may be asked for, as its clients read it before they ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cellwall.apps.doors.judge0.encoding import UNPACKED_BYTES
from cellwall.apps.doors.judge0.fields import DEFAULTS, bounds
from cellwall.egress.posting import LONGEST_S
from cellwall.egress.webhook import WebhookSettings

if TYPE_CHECKING:
    from cellwall.server.core.settings import ServerSettings


def configuration(settings: ServerSettings, most_in_batch: int) -> dict[str, Any]:
    """Return the answer; maxima are the operator's ceilings."""
    most = {f"max_{name}": high for name, (_, high) in bounds(settings.most).items()}
    return {
        **DEFAULTS,
        **most,
        "max_stack_limit": DEFAULTS["stack_limit"],
        "maintenance_mode": False,
        "use_docs_as_homepage": False,
        "enable_wait_result": True,
        "enable_compiler_options": True,
        "allowed_languages_for_compile_options": [],
        "enable_command_line_arguments": True,
        "enable_submission_delete": True,
        "enable_callbacks": settings.webhooks,
        "callbacks_max_tries": 1 + len(WebhookSettings().delays_s),
        "callbacks_timeout": LONGEST_S,
        "enable_additional_files": True,
        "max_extract_size": UNPACKED_BYTES // 1024,
        "enable_batched_submissions": True,
        "max_submission_batch_size": most_in_batch,
        "max_queue_size": settings.most_queued,
        "submission_cache_duration": 0.0,
        "allow_enable_network": False,
        "allow_enable_per_process_and_thread_time_limit": False,
        "allow_enable_per_process_and_thread_memory_limit": False,
    }
