// SPDX-License-Identifier: BSD-3-Clause
// The commands of an NBD client, in the words of a device.
#pragma once

#include "bridge/client/geometry.hpp"
#include "bridge/nbd/framing.hpp"
#include "bridge/nbd/handshake.hpp"
#include "bridge/nbd/request.hpp"
#include "bridge/nbd/requests.hpp"

namespace rnbd::nbd {

/// Part of a trim or zeroing.
struct Piece {
  std::uint64_t offset;  ///< bytes
  std::uint64_t length;  ///< bytes
};

/// The first piece of `length` bytes from `offset` on. Others wait for it, so it has 1 GiB at most,
/// and less than a granule more where granules do not divide that. It ends where granules meet,
/// because half a granule cannot be given back.
///
/// Threads: any.
Piece first_piece(const DeviceGeometry& geometry, std::uint64_t offset, std::uint64_t length);

/// Checks requests against what the client was told, and has the device carry them out.
///
/// Threads: that of its connection; call() any.
/// Source:  the NBD protocol, transmission.
class Commands {
 public:
  Commands(const Agreement& agreement, Requests& requests)
      : agreement_{agreement}, requests_{requests} {}

  /// 0: `transfer` has been begun. EAGAIN: it takes a call(). Otherwise the answer.
  int prepare(Request& request);
  /// Carries the request out, of a large one a piece, and may wait. Returns an errno or 0.
  int call(Request& request, const Interrupt& interrupt);
  /// The piece under way of a zeroing or trim has ended well. True: another one follows.
  bool next_piece(Request& request) const;
  /// 0: an extended request may have the payload that it has, if any. Otherwise the answer.
  int judge_payload(const RequestHead& head) const;

 private:
  Piece piece_of(const Request& request) const;
  int prepare_change(Request& request);
  bool offered(const Request& request) const;
  bool inside(const Request& request) const;
  int ask_extents(Request& request, const Interrupt& interrupt);
  int read_ahead(const Request& request, const Interrupt& interrupt);

  const Agreement& agreement_;
  Requests& requests_;
};

}  // namespace rnbd::nbd
