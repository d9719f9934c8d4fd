#!/bin/bash
# Servers that do not play by the rules before a session is up: a client program of ours says who and why,
# its NBD clients get an error, and it serves when the server is good again.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/hostile_stage.sh"

it "refusals, hellos, records and info responses that cannot be" stage handshake
it "with connect=now it does not start, and says who and why" stage start
it "silence at any step before the session is up is given up by connect-timeout" stage silence
it "SIGTERM while a server is silent at any step: it leaves within 5 s" stage sigterm

finish
