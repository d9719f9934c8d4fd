// SPDX-License-Identifier: BSD-3-Clause
// The errors of the NBD protocol.
#pragma once

#include <cerrno>
#include <cstdint>

namespace rnbd {

/// Replaces an errno that has no value in NBD. nbdkit would turn it into EINVAL, as if the client
/// had asked for something impossible.
constexpr int errno_for_nbd(int error) {
  switch (error) {
    case 0:
    case EPERM:
    case EROFS:
    case EIO:
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EINVAL:
    case EOVERFLOW:
    case EOPNOTSUPP:
    case ESHUTDOWN:
      return error;
    case EACCES:
      return EPERM;
    case EINTR:  // a wait was given up: nbdkit ends, or the client has gone
      return ESHUTDOWN;
    default:
      return EIO;
  }
}

/// The number that stands for an errno on the wire.
/// Source: the NBD protocol, error values.
constexpr std::uint32_t nbd_error(int error) {
  switch (errno_for_nbd(error)) {
    case 0:
      return 0;
    case EPERM:
    case EROFS:
      return 1;
    case ENOMEM:
      return 12;
    case EINVAL:
      return 22;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return 28;
    case EOVERFLOW:
      return 75;
    case EOPNOTSUPP:
      return 95;
    case ESHUTDOWN:
      return 108;
    default:
      return 5;
  }
}

}  // namespace rnbd
