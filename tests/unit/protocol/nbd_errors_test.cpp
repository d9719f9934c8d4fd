// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/protocol/nbd_errors.hpp"

#include <doctest/doctest.h>

#include <initializer_list>

namespace nbd_errors_test {

using rnbd::errno_for_nbd;

TEST_CASE("what NBD can say stays as it is") {
  for (int error : {0, EPERM, EROFS, EIO, ENOMEM, ENOSPC, EDQUOT, EFBIG, EINVAL, EOVERFLOW,
                    EOPNOTSUPP, ESHUTDOWN}) {
    CHECK(rnbd::errno_for_nbd(error) == error);
  }
}

TEST_CASE("what NBD cannot say becomes an I/O error, never an invalid request") {
  for (int error : {ETIMEDOUT, ECONNRESET, ECONNREFUSED, ECONNABORTED, ENOTCONN, EHOSTUNREACH,
                    ENODEV, ENXIO, EPROTO, EREMOTEIO, EBUSY, EAGAIN, EPIPE, EMSGSIZE, ESTALE,
                    ECANCELED, ENETUNREACH, ENETDOWN, 511}) {
    CHECK(rnbd::errno_for_nbd(error) == EIO);
  }
}

TEST_CASE("a wait that was given up means going down, a missing right means no permission") {
  CHECK(rnbd::errno_for_nbd(EINTR) == ESHUTDOWN);
  CHECK(rnbd::errno_for_nbd(EACCES) == EPERM);
}

}  // namespace nbd_errors_test
