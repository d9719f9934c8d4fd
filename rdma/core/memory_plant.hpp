// SPDX-License-Identifier: BSD-3-Clause
// A bug on purpose, which programs of tests/ have only.
#pragma once

#ifndef RTRS_MEMORY_PLANTED
#define RTRS_MEMORY_PLANTED(name) false
#endif
