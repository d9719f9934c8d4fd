// SPDX-License-Identifier: BSD-3-Clause
// Preloaded into programs that load a sanitized library, next to the sanitizer's own library.
//
// Linked with -z initfirst and itself sanitized, so that the sanitizer starts before any other
// constructor runs. Otherwise it starts within the first malloc(), which for nbdkit is the one in
// newlocale(), called by a constructor of libp11-kit (from GnuTLS), with glibc's locale lock held.
// The sanitizer's start calls dlerror(), which takes and releases that lock once more: a lock
// released twice, on which nbdkit then waits for ever when it exits.

/// Keeps plugins loaded until the end, so that reports about leaks have names in them.
extern "C" int dlclose(void* /*handle*/) noexcept { return 0; }
