// SPDX-License-Identifier: BSD-3-Clause
// A bug on purpose, which programs of tests/ have only.
#pragma once

#ifndef RTRS_PLANTED
#define RTRS_PLANTED(name) false
#endif
