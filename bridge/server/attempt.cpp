// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/attempt.hpp"

#include <boost/system/system_error.hpp>
#include <cerrno>
#include <new>
#include <system_error>

namespace rnbd {

int errno_of_exception() noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return ENOMEM;
  } catch (const std::system_error& refused) {
    return refused.code().value();
  } catch (const boost::system::system_error& refused) {
    return refused.code().value();
  } catch (...) {
    return EIO;
  }
}

}  // namespace rnbd
