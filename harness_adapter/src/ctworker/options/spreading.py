"""What hf and vllm call spreading a model over GPUs, and limiting its memory, in this worker's words.

Whatever the words, each GPU scores sequences of its own, and no score depends on any of this.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
from typing import Any

from ..base.errors import ArgumentError
from . import values
from .settings import Settings

log = logging.getLogger("lm_eval.ctworker")

SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
MEMORY = ("gpu_memory_utilization", "max_memory", "max_memory_per_gpu", "max_cpu_memory")
NAMES = (*SIZES, "parallelize", "device_map", *MEMORY)

_EVERYWHERE = ("auto", "balanced", "balanced_low_0", "sequential")
#: Where accelerate puts what no device holds: the worker decides that itself.
_ELSEWHERE = ("disk",)


def understand(settings: Settings, given: dict[str, Any]) -> None:
    """Sets devices, placement and memory limits. Raises ArgumentError, also if two arguments contradict each other."""
    given = {name: value for name, value in given.items() if name not in NAMES or not _is_off(name, value)}
    named = [name for name in NAMES if name in given]
    if settings.endpoint is not None:
        if named:
            log.info("without effect with endpoint= (the worker is already running): %s", ", ".join(named))
        return
    before = dict(vars(settings))
    limits = _max_memory(given.get("max_memory"))
    _choose_devices(settings, given, limits)
    _limit_memory(settings, given, limits)
    if named:
        now = {name: value for name, value in vars(settings).items() if value != before[name]}
        words = ", ".join(f"{name}={value}" for name, value in now.items() if value not in (None, True)) or "no effect"
        log.info("%s: %s", ", ".join(f"{name}={given[name]}" for name in named), words)


def _is_off(name: str, value: Any) -> bool:
    """Not given, or switched off."""
    off = value is None or value is False or (isinstance(value, str) and value.lower() in ("", "none", "false"))
    return off or (name == "parallelize" and value in (0, "0"))


# ---- devices ----


def _choose_devices(settings: Settings, given: dict[str, Any], limits: dict[int | str, str]) -> None:
    chosen = _chosen_devices(settings, given, limits)
    sizes = {name: values.count(name, given[name]) for name in SIZES if name in given}
    n = 1
    for factor in sizes.values():
        n *= factor
    spread = " and ".join(f"{name}={factor}" for name, factor in sizes.items() if factor > 1)
    everywhere = "parallelize" in given or given.get("device_map") in _EVERYWHERE
    if settings.backend == "cpu":  # one device, whose threads share the work
        return
    if chosen is not None:
        name, numbers = chosen
        if n > 1 and numbers is not None and len(numbers) != n:
            raise ArgumentError(
                f"{spread} means {n} GPUs, and {name} means {len(numbers)}: pass only one of them"
            )
        if settings.devices is None and numbers is not None:
            _use(settings, numbers)
    elif n > 1:
        settings.devices, settings.gpu = f"0-{n - 1}", None
    elif everywhere:
        settings.devices, settings.gpu = "all", None
    if n > 1 and sizes.get("data_parallel_size") == n and settings.placement is None:
        settings.placement = "resident"  # copies of the model, and no parts of it


def _use(settings: Settings, numbers: list[int]) -> None:
    settings.backend, settings.device_is_wish = "cuda", True
    if len(numbers) == 1:
        settings.gpu = numbers[0]
    else:
        settings.devices, settings.gpu = ",".join(map(str, numbers)), None


def _chosen_devices(
    settings: Settings, given: dict[str, Any], limits: dict[int | str, str]
) -> tuple[str, list[int] | None] | None:
    """The GPUs that are named one by one, by all who do so, and one of these; None: all that there are."""
    found: list[tuple[str, list[int] | None]] = []
    if settings.devices is not None:
        found.append((f"devices={settings.devices}", numbers_of(settings.devices)))
    if settings.gpu is not None:
        found.append((f"device={given.get('device')}", [settings.gpu]))
    mapped = _device_map(given.get("device_map"))
    if mapped is not None:
        found.append((f"device_map={given['device_map']}", mapped))
    if limits:
        found.append((f"max_memory={given['max_memory']}", sorted(k for k in limits if isinstance(k, int))))
    on_cpu = "device=cpu" if settings.backend == "cpu" else ""
    for name, numbers in found:
        if numbers == []:
            on_cpu = on_cpu or name
    for name, numbers in found:
        if on_cpu and numbers != []:
            raise ArgumentError(f"{on_cpu} means the CPU, and {name} means GPUs: pass only one of them")
        if numbers != found[0][1] and numbers is not None and found[0][1] is not None:
            raise ArgumentError(f"{found[0][0]} and {name} mean different devices: pass only one of them")
    if on_cpu:
        settings.backend, settings.device_is_wish = "cpu", True
        return None
    exact = [one for one in found if one[1] is not None]
    return next(iter(exact or found), None)


def numbers_of(devices: str) -> list[int] | None:
    """0,2-3 -> [0, 2, 3]. None: `all`, or names that are no numbers."""
    numbers: list[int] = []
    for part in devices.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            return None
        numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return sorted(numbers)


def _device_map(value: Any) -> list[int] | None:
    """The GPUs that a device map names; []: the CPU; None: none, or all (`auto` and the like)."""
    value = _from_json(value)
    if value is None or value in _EVERYWHERE:
        return None
    places = list(value.values()) if isinstance(value, dict) else [value]
    numbers, on_cpu = set(), False
    for place in places:
        match = re.fullmatch(r"(?:cuda:)?(\d+)|cuda", str(place))
        if match:
            numbers.add(int(match[1] or 0))
        elif place == "cpu":
            on_cpu = True
        elif place not in _ELSEWHERE or not isinstance(value, dict):
            raise ArgumentError(
                f"device_map={value!r}: expected auto, cpu, cuda:N, or a mapping from modules to such devices"
            )
    if not numbers and not on_cpu:
        raise ArgumentError(f"device_map={value!r}: names no device that computes")
    return sorted(numbers)


def _from_json(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("{"):  # lm_eval's command line passes a string
        with contextlib.suppress(ValueError):
            return json.loads(value)
    return value


# ---- memory ----


def _max_memory(value: Any) -> dict[int | str, str]:
    """{0: "20GiB", "cpu": "60GiB"}, without the devices that get nothing."""
    value = _from_json(value)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ArgumentError(
            f"max_memory={value!r}: expected a mapping such as {{0: '20GiB', 'cpu': '60GiB'}}; on lm_eval's command line "
            'in an argument of its own, as JSON: \'max_memory={"0": "20GiB", "cpu": "60GiB"}\''
        )
    limits: dict[int | str, str] = {}
    for key, most in value.items():
        if not re.fullmatch(r"\d+|cpu|disk", str(key)):
            raise ArgumentError(f"max_memory={value!r}: {key!r} is no device; expected numbers of GPUs, and cpu")
        text = values.size(f"max_memory[{key!r}]", most)
        if str(key) not in _ELSEWHERE and re.search(r"[1-9]", text):
            limits[int(key) if str(key).isdigit() else str(key)] = text
    if not limits:
        raise ArgumentError(f"max_memory={value!r}: no device gets any memory")
    return limits


def _limit_memory(settings: Settings, given: dict[str, Any], limits: dict[int | str, str]) -> None:
    on_cpu = settings.backend == "cpu"
    share, per_gpu, of_host = map(given.get, ("gpu_memory_utilization", "max_memory_per_gpu", "max_cpu_memory"))
    if share is not None:
        percent = f"{100 * _share('gpu_memory_utilization', share):g}%"
        if not on_cpu:
            _set(settings, "device_memory_limit", percent, "gpu_memory_utilization", share)
    if per_gpu is not None:
        text = values.size("max_memory_per_gpu", per_gpu)
        if not on_cpu:
            _set(settings, "device_memory_limit", text, "max_memory_per_gpu", per_gpu)
    if of_host is not None:
        name = "device_memory_limit" if on_cpu else "host_memory_limit"
        _set(settings, name, values.size("max_cpu_memory", of_host), "max_cpu_memory", of_host)
    of_gpus = [most for key, most in limits.items() if isinstance(key, int)]
    if of_gpus:
        if len(set(of_gpus)) > 1:
            raise ArgumentError(
                f"max_memory={given['max_memory']}: the GPUs of a worker have one limit: give each the same, for example "
                "the smallest"
            )
        _set(settings, "device_memory_limit", of_gpus[0], "max_memory", given["max_memory"])
    if "cpu" in limits:
        name = "device_memory_limit" if on_cpu else "host_memory_limit"
        _set(settings, name, limits["cpu"], "max_memory", given["max_memory"])


def _share(name: str, value: Any) -> float:
    with contextlib.suppress(TypeError, ValueError):
        if not isinstance(value, bool) and 0 < float(value) <= 1:
            return float(value)
    raise ArgumentError(f"{name}={value!r}: expected a share of each GPU's memory, above 0 and up to 1")


def _set(settings: Settings, target: str, text: str, name: str, value: Any) -> None:
    have = getattr(settings, target)
    if have not in (None, text):
        raise ArgumentError(
            f"{name}={value} means {target}={text}, which is {have} already: pass only one of them"
        )
    setattr(settings, target, text)
