// SPDX-License-Identifier: BSD-3-Clause
// The meaning of the options of the C interface for the interfaces of RTRS.
#pragma once

#include <signal.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <tl/expected.hpp>

#include "rdma/client.hpp"
#include "rdma/library/include/rtrs.h"
#include "rdma/server.hpp"

namespace rtrs::library {

/// Puts a failure where a caller of the C interface looks for it; `error` may be null.
void tell(const Failure& failure, rtrs_error* error);

/// As long as it lives, threads that are created take no signals: those are the program's.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t before_;
};

/// A structure of a caller that was compiled against another version: members that it lacks have
/// their defaults.
///
/// Errors: EINVAL: it has something that this version does not know, or no size.
template <class Options>
tl::expected<Options, Failure> read_options(const Options* from) {
  Options options{};
  if (from == nullptr) return options;
  constexpr std::size_t kSmallest = sizeof(std::size_t);
  const auto* bytes = reinterpret_cast<const unsigned char*>(from);
  bool unknown = from->size < kSmallest;
  for (std::size_t i = sizeof(Options); i < from->size && !unknown; ++i) unknown = bytes[i] != 0;
  if (unknown) {
    return tl::unexpected(
        Failure{EINVAL,
                "the options have a size that this version of librtrs does not know: set `size` to "
                "sizeof, and everything that is not used to 0"});
  }
  std::memcpy(&options, from, from->size < sizeof(Options) ? from->size : sizeof(Options));
  return options;
}

/// All that does not depend on what the client connects to. `name`: of the session, "" makes one.
/// Errors: EINVAL, with the remedy.
tl::expected<ClientOptions, Failure> client_settings(const rtrs_client_options& options,
                                                     std::string name);

/// `recovery handler` as in ClientOptions. Errors: EINVAL, with the remedy.
tl::expected<ClientOptions, Failure> client_options(const char* uri,
                                                    const rtrs_client_options& options,
                                                    RecoveryHandler& recovery);
/// Errors: as above.
tl::expected<ServerOptions, Failure> server_options(const char* uri,
                                                    const rtrs_server_options& options);

}  // namespace rtrs::library
