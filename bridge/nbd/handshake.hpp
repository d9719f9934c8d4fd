// SPDX-License-Identifier: BSD-3-Clause
// The beginning of an NBD connection: both sides agree on an export and on features.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "bridge/nbd/exports.hpp"
#include "bridge/nbd/framing.hpp"
#include "rdma/tls.hpp"
#include "rdma/transport/tls/session.hpp"

namespace rnbd::nbd {

/// The state of an adopted client's connection.
struct Watched {
  std::atomic<bool> goodbye{false};  ///< it has said that it leaves
  std::atomic<bool> ended{false};    ///< the connection is no more
};

/// A connection between two requests, for another process to go on with.
struct Released {
  int socket = -1;     ///< the holder of this closes it
  std::string unread;  ///< bytes that the client has sent behind its last request that was answered
  std::uint16_t flags = 0;  ///< these three as in Agreement
  Framing framing = Framing::simple;
  bool block_status = false;
  std::optional<LeftDisk> disk = {};  ///< none: only its observer knows how to go on
};

/// The agreement between a client and us.
struct Agreement {
  Lease device;
  std::unique_ptr<rtrs::tls::Session> tls = {};  ///< null: in clear
  std::uint16_t flags = 0;                       ///< of the transmission, as the client was told
  Framing framing = Framing::simple;
  bool block_status = false;              ///< the client has chosen base:allocation
  std::shared_ptr<Watched> watched = {};  ///< null: nobody looks
  std::string unread = {};                ///< bytes of requests that another process has received
};

/// The reply to a client when this errno keeps its export from being opened, or the exports from
/// being listed. It says that there is no such export, that the client may not have it, or that the
/// server cannot be used now. NBD has no word for the last; clients take shutdown for a reason to
/// return.
Reply refusal(int error);

/// The TLS of NBD clients: they may or must use it (STARTTLS).
struct FrontTls {
  rtrs::TlsMode mode = rtrs::TlsMode::off;
  std::shared_ptr<rtrs::tls::KeyStore> keys;  ///< unless it is off
};

/// Limits the whole handshake, because a client in it holds one of --max-connections.
inline constexpr std::chrono::seconds kHandshakePatience{60};

/// Negotiates until the client has chosen an export. Drops a client that has not finished within
/// `patience`, or sends nonsense. The first opening of its export does not count. `chosen` is
/// called before the client gets its export; from then on the export is in use.
///
/// Errors:  none when the client left or was sent away; `log` knows why.
/// Threads: blocks; any.
/// Source:  the NBD protocol, fixed newstyle negotiation.
std::optional<Agreement> shake_hands(int socket, Exports& exports, const rtrs::Log& log,
                                     const Interrupt& interrupt,
                                     std::chrono::milliseconds patience = kHandshakePatience,
                                     const FrontTls& tls = {},
                                     const std::function<void()>& chosen = {});

}  // namespace rnbd::nbd
