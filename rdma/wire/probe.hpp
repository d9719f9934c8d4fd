// SPDX-License-Identifier: BSD-3-Clause
// Static probes for bpftrace, perf and gdb; docs/operations.md lists them. Each is one nop until
// somebody traces it.
#pragma once

// Source: systemtap-sdt-dev; a build without it has no probes.
#if __has_include(<sys/sdt.h>)
#define SDT_USE_VARIADIC
#include <sys/sdt.h>
/// RTRS_PROBE(provider, name, arguments...): arguments are integers and pointers that are at hand.
#define RTRS_PROBE(provider, name, ...) STAP_PROBEV(provider, name, __VA_ARGS__)
#else
#define RTRS_PROBE(provider, name, ...) static_cast<void>(0)
#endif
