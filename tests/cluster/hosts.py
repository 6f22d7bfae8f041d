# SPDX-License-Identifier: Apache-2.0
"""Two hosts on one machine: network namespaces joined by a veth pair, each with a host name that both can resolve.

  with hosts.Hosts() as pair:
      pair.popen(0, ["hostname"])         # host-a, 10.83.0.1
      pair.rate("1gbit")                  # both directions
      pair.cut(); pair.join()

Root only. Needs CAP_SYS_ADMIN and CAP_NET_ADMIN."""

import json
import os
import pathlib
import shutil
import subprocess

import started

NAMES = ("host-a", "host-b")
ADDRESSES = ("10.83.0.1", "10.83.0.2")


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts(started.Started):
    def __init__(self):
        self.spaces = [f"fp8-{os.getpid()}-{name}" for name in NAMES]
        self.links = [f"fp8v{os.getpid() % 100000}{side}" for side in "ab"]

    def start(self):
        text = "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in zip(NAMES, ADDRESSES))
        for space in self.spaces:
            ip("netns", "add", space)
            folder = pathlib.Path("/etc/netns") / space  # `ip netns exec` lays it over /etc
            folder.mkdir(parents=True)
            (folder / "hosts").write_text(text)
        ip("link", "add", self.links[0], "type", "veth", "peer", "name", self.links[1])
        for link, space, address in zip(self.links, self.spaces, ADDRESSES):
            ip("link", "set", link, "netns", space)
            ip("-n", space, "addr", "add", f"{address}/24", "dev", link)
            ip("-n", space, "link", "set", "lo", "up")
        self.join()

    def join(self):
        for link, space in zip(self.links, self.spaces):
            ip("-n", space, "link", "set", link, "up")

    def cut(self):
        ip("-n", self.spaces[0], "link", "set", self.links[0], "down")

    def rate(self, rate):
        """What each direction carries: "1gbit"; None: as much as it can."""
        for link, space in zip(self.links, self.spaces):
            subprocess.run(["tc", "-n", space, "qdisc", "del", "dev", link, "root"], capture_output=True)
            if rate is not None:
                subprocess.run(["tc", "-n", space, "qdisc", "add", "dev", link, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"],
                               check=True, capture_output=True, text=True)

    def sent(self):
        """Bytes that the cable has carried, both ways."""
        total = 0
        for link, space in zip(self.links, self.spaces):
            shown = subprocess.run(["ip", "-j", "-s", "-n", space, "link", "show", "dev", link], check=True, capture_output=True, text=True).stdout
            total += json.loads(shown)[0]["stats64"]["tx"]["bytes"]
        return total

    def command(self, host, command):
        """`command` with the host's network and its name."""
        return ["ip", "netns", "exec", self.spaces[host], "unshare", "--uts", "sh", "-c", f'hostname {NAMES[host]}; exec "$@"', "sh", *command]

    def popen(self, host, command, **options):
        return subprocess.Popen(self.command(host, command), **options)

    def stop(self):
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
            shutil.rmtree(pathlib.Path("/etc/netns") / space, ignore_errors=True)
