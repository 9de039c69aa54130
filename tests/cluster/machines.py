"""Machines to bring a cluster up on: namespaces of this one, each with an address, processes, files and an sshd.

From inside one neither the others' processes nor the host's can be seen or ended, so `ray stop` and `ray down` end what
they should and nothing else, and port 22 is free. The network between them reaches nothing outside. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, CompletedProcess, Popen

import psutil

ROOT = Path(__file__).parents[2]
VENV = Path(sys.prefix)
PROJECT = VENV.parent
"""Where the laptop has a copy of the source, whatever lies there on the host."""
HOME = "/mnt/home"
USER = "ubuntu"
GATEWAY = "192.168.1.1"
SHARED = "/mnt/shared"
"""A directory that is the same on every machine."""

FILES = {
    # The one user that exists, under the name of the cluster file.
    "passwd": f"{USER}:x:0:0::{HOME}:/bin/bash\nsshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n",
    "hosts": "127.0.0.1 localhost\n127.0.1.1 NAME\n",  # as Debian and Ubuntu write it
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    # There is no index to fetch the build's requirements from: setuptools is the venv's.
    "pip.conf": "[install]\nno-build-isolation = false\nno-index = true\n",
    "sshd_config": "HostKey /mnt/files/host_key\nAuthorizedKeysFile /mnt/files/key.pub\nUsePAM no\nStrictModes no\n",
}


def missing() -> str | None:
    """What this host lacks to make machines; None when it has all."""
    if not sys.platform.startswith("linux") or os.geteuid():
        return "root on Linux, for namespaces"
    wanted = {
        "/usr/sbin/sshd": "openssh-server",
        "ssh": "openssh-client",
        "rsync": "rsync",
        "ip": "iproute2",
        "unshare": "util-linux",
    }
    lacking = [package for program, package in wanted.items() if not shutil.which(program)]
    if lacking:
        return f"the package(s) {' '.join(lacking)}"
    tried = subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"the right to make namespaces ({tried.stderr.strip()})" if tried.returncode else None


@dataclass(frozen=True)
class Machine:
    """One of them, while it runs."""

    name: str
    process: Popen[str]
    """Its end is the end of everything on the machine."""
    init: int
    """Its process 1, by the host's number."""

    def run(self, command: str, *, timeout: float) -> CompletedProcess[str]:
        """Do a command of bash on it, in the project's directory; output and errors come together in `stdout`.

        After `timeout` seconds it is ended, with return code 124.
        """
        environment = {"HOME": HOME, "USER": USER, "PATH": f"{VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        inside = ["nsenter", f"--target={self.init}", "--mount", "--net", "--pid", "--uts", "--ipc"]
        limited = [*inside, "timeout", "--kill-after=10", str(timeout), "bash", "-c", f"cd {PROJECT} && {command}"]
        return subprocess.run(limited, env=environment, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True)

    def raylets(self) -> list[int]:
        """Those that run on it, by the host's numbers."""
        return [p.pid for p in psutil.Process(self.init).children(recursive=True) if p.name() == "raylet"]


class Network:
    """A laptop that has the project's source, and machines that have none of it; `close` ends them all."""

    def __init__(self, directory: Path, addresses: Mapping[str, str]) -> None:
        """`directory`: a new one, for keys and the shared storage. `addresses`: of the machines, by name."""
        self.directory = directory
        self.shared = directory / "shared"
        for name in ("files", "shared", "source", "nothing"):
            (directory / name).mkdir()
        self._write_files()
        self.started: list[Machine] = []
        self.laptop = self._start("laptop", "source")
        self._net(self.laptop, "link set lo up")
        self._net(self.laptop, "link add bridge type bridge")
        self._net(self.laptop, f"address add {GATEWAY}/24 dev bridge")
        self._net(self.laptop, "link set bridge up")
        for name, address in addresses.items():
            machine = self._start(name, "nothing")
            self._net(self.laptop, f"link add {name} type veth peer name eth0 netns {machine.init}")
            self._net(self.laptop, f"link set {name} master bridge up")
            self._net(machine, "link set lo up")
            self._net(machine, f"address add {address}/24 dev eth0")
            self._net(machine, "link set eth0 up")
            # Leads nowhere; Ray takes the interface of the default route for the machine's address.
            self._net(machine, f"route add default via {GATEWAY}")
        for machine in self.started:
            assert machine.process.stdin is not None
            machine.process.stdin.write("\n")
            machine.process.stdin.flush()

    @property
    def machines(self) -> list[Machine]:
        """All but the laptop."""
        return [machine for machine in self.started if machine is not self.laptop]

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for machine in self.started:
            machine.process.kill()
            machine.process.communicate()

    def _write_files(self) -> None:
        files = self.directory / "files"
        for name, text in FILES.items():
            (files / name).write_text(text)
        for name in ("key", "host_key"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", files / name], check=True)
        # As it stands now: other processes may change the working tree meanwhile.
        left_out = [f"--exclude=/{name}" for name in (VENV.name, ".git", "out")]
        subprocess.run(["rsync", "-a", *left_out, f"{ROOT}/", self.directory / "source/"], check=True)

    def _start(self, name: str, source: str) -> Machine:
        script = ["bash", str(Path(__file__).with_name("machine.sh")), name]
        folders = [str(self.directory / folder) for folder in ("files", source, "shared")]
        own = ["--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--mount-proc", "--kill-child"]
        process = Popen(
            # Also when this process is killed no machine stays.
            ["setpriv", "--pdeathsig", "KILL", "unshare", *own, *script, *folders, str(VENV), sys.base_prefix],
            stdin=PIPE,
            stdout=PIPE,
            stderr=(self.directory / f"{name}.log").open("w"),
            text=True,
        )
        assert process.stdout is not None
        if process.stdout.readline() != "mounted\n":
            process.kill()
            raise RuntimeError(f"machine {name} did not start: {(self.directory / f'{name}.log').read_text()}")
        self.started.append(Machine(name, process, psutil.Process(process.pid).children()[0].pid))
        return self.started[-1]

    @staticmethod
    def _net(machine: Machine, arguments: str) -> None:
        subprocess.run(["nsenter", f"--target={machine.init}", "--net", "ip", *arguments.split()], check=True)
