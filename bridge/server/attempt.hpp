// SPDX-License-Identifier: BSD-3-Clause
// Work that fails with an exception when the system has no more to give.
#pragma once

namespace rnbd {

/// The errno of the exception that is being handled: ENOMEM for memory, EMFILE or EAGAIN for
/// descriptors and threads, EIO for anything else.
///
/// Threads: any.
int errno_of_exception() noexcept;

/// Runs the work, so that what it lacks ends a request and not the server.
///
/// Errors: returns 0, or the errno of its exception.
/// Threads: any.
template <class Work>
int attempt(const Work& work) noexcept {
  try {
    work();
    return 0;
  } catch (...) {
    return errno_of_exception();
  }
}

}  // namespace rnbd
