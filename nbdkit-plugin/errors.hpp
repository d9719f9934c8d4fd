// Which errno an NBD client is told.
#pragma once

#include <cerrno>

namespace rnbd::plugin {

/// Replaces what would lose its meaning on the way to the NBD client: nbdkit turns every errno that
/// NBD does not know into EINVAL, as if the client had asked for something impossible.
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

}  // namespace rnbd::plugin
