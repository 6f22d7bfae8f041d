# SPDX-License-Identifier: Apache-2.0
"""What a `with` starts and stops; stopped too where its start fails half-way."""


class Started:
    """start() and stop() are the subclass's; stop() must do with what start() has not reached."""

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception):
        self.stop()
