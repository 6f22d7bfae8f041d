# SPDX-License-Identifier: Apache-2.0
"""What long runs found, a JSON line for each that is finished: who was cut off goes on where they were.

  notes = Notes("convergence.jsonl")      None: nothing is remembered
  notes.get("habana, 2 ranks, seed 1", lambda: an_hour_of_work())

They know nothing of the program that ran: a new one needs a new file."""

import json
import pathlib


class Notes:
    def __init__(self, path=None):
        self.path = pathlib.Path(path) if path else None
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path and self.path.exists() else []
        self.found = {row["run"]: row["found"] for row in map(json.loads, lines)}

    def get(self, run, make):
        if run not in self.found:
            self.found[run] = make()
            if self.path:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"run": run, "found": self.found[run]}) + "\n")
        return self.found[run]
