// SPDX-License-Identifier: BSD-3-Clause
// A bug on purpose, which programs of tests/ have only.
#pragma once

#ifndef RNBD_BRICK_PLANTED
#define RNBD_BRICK_PLANTED(name) false
#endif
