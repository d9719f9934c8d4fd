#!/bin/bash
# Servers that do not play by the rules in a session that is up: a client program of ours says who and why,
# its NBD clients get an error or the right data, and it serves when the server is good again.
# SPDX-License-Identifier: BSD-3-Clause
source "${BASH_SOURCE[0]%/*}/hostile_stage.sh"

it "replies that are none end the path, and the request has the right answer" stage answer
it "what nobody asked for does no harm" stage unasked
it "answers to OPEN and DEVICE INFO that make no sense" stage open
it "a server that has something else, or nonsense, after it has forgotten the session" stage renewal
it "BLOCK STATUS answers that are empty, overlap or lead beyond the end" stage status
it "lists of exports that are damaged, without end or as large as memory" stage list
it "addresses that are none, too many or never come, with paths=auto: the disk works" stage addresses
it "CLOSEs that end late, at a server that uses ids again: each device has its own requests" stage linux
it "with a second path that is good, nobody notices the hostile one" stage second

finish
