"""The bare-metal board as QEMU shows it: where things lie, and where the model is kept.

The firmware reads the model from RAM, from flash in place, or from a disk, block by block. Owns the emulator's command
line; starts nothing.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

from . import library
from .engine import Model
from .errors import DoesNotFit, UsageError
from .jobs import Job

STORES = ("ram", "flash", "block")
SLOTS = 8  # expert slots of a job that names none and reads its experts from the disk


@cache
def layout() -> dict[str, int]:
    """The #define numbers of layout.h."""
    root = library.repository()
    shipped = library.data_folder() / "include" / "layout.h"
    path = root / "targets" / "baremetal_arm64" / "layout.h" if root else shipped
    text = path.read_text(encoding="utf-8")
    return {
        name: int(number, 0) for name, number in re.findall(r"#define BOARD_(\w+) (0x[0-9A-Fa-f]+|\d+)", text)
    }


def suited(job: Job) -> Job:
    """The job for where its model is kept: from a disk come the resident weights into the pool, and experts into slots.
    The answer stays the same. A board's own store is its disk."""
    if job.board_store not in STORES:
        raise UsageError(f"board store {job.board_store!r}: expected one of {', '.join(STORES)}")
    if job.board_store != "block":
        return replace(job, board_store="block") if job.store == "PORT" else job
    slots = job.limits.slots or SLOTS
    limits = replace(job.limits, resident_copy=True, stream_experts=True, slots=slots)
    return replace(job, limits=limits, store="PORT")


def in_ram(job: Job, model: Model) -> int:
    """How much of the file lies in the board's RAM."""
    if job.board_store == "flash":
        return 0
    head = job.head_bytes(model.info()) if job.board_store == "block" else 0
    return head or model.bytes


def memory(job: Job, model: Model) -> int:
    """Bytes of RAM the board needs: the firmware, what it keeps of the file, the job's region."""
    place = layout()
    step = place["REGION_ALIGN"]
    region = place["BLOB"] + -(-in_ram(job, model) // step) * step
    end = region + job.region_bytes(model.plan(job.planned()))
    if end > place["GIB_MAX"] << 30:
        raise DoesNotFit(
            f"{model.path}: blob and pool need {end - place['RAM']} bytes of board memory, "
            f"the firmware maps up to {place['GIB_MAX']} GiB; plan less or use another target"
        )
    return end - place["RAM"]


def packed(job: Job, model: Model) -> bytes:
    """The job as bytes."""
    return job.pack(model.bytes, model.plan(job.planned()), job.head_bytes(model.info()))


def flash_image(model: Model, folder: Path) -> Path:
    """The model file in a file of the flash's size, which QEMU asks for; the rest of it takes no space."""
    size = layout()["FLASH_BYTES"]
    if model.bytes > size:
        raise DoesNotFit(
            f"{model.path}: {model.bytes} bytes do not fit into the board's flash of {size}; use --store block"
        )
    path = folder / "flash"
    shutil.copyfile(model.path, path)
    os.truncate(path, size)
    return path


def options(job: Job, model: Model, folder: Path) -> list[str]:
    """QEMU's options that bring job and model; writes what they name into a folder."""
    path = folder / "job"
    path.write_bytes(packed(job, model))
    place = layout()
    given = ["-device", f"loader,file={escape(path)},addr={place['JOB']:#x},force-raw=on"]
    if job.board_store == "flash":
        image = escape(flash_image(model, folder))
        return [*given, "-drive", f"if=pflash,unit=1,format=raw,readonly=on,file={image}"]
    if job.board_store == "block":
        return [*given, *disk(f"format=raw,file={escape(model.path)}")]
    return [*given, "-device", f"loader,file={escape(model.path)},addr={place['BLOB']:#x},force-raw=on"]


def disk(drive: str, device: str = "", legacy: bool = False) -> list[str]:
    """A disk for the firmware; `drive` says what it reads from, `device` more about the device."""
    return [
        "-global",
        f"virtio-mmio.force-legacy={'true' if legacy else 'false'}",
        "-drive",
        f"if=none,id=model,readonly=on,{drive}",
        "-device",
        f"virtio-blk-device,drive=model{device}",
    ]


def escape(path: Path) -> str:
    """A path inside a QEMU option, where commas are doubled."""
    return os.path.abspath(path).replace(",", ",,")
