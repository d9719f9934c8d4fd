// SPDX-License-Identifier: BSD-3-Clause
// The system's refusals in words.
#pragma once

#include <boost/system/system_error.hpp>
#include <cerrno>
#include <exception>
#include <string>
#include <system_error>
#include <utility>

#include "rdma/failure.hpp"

namespace rtrs {

/// Descriptors, threads, memory that a session needs and did not get.
inline Failure failure_of(const std::exception& exception) {
  int error = ENOMEM;
  if (const auto* e = dynamic_cast<const std::system_error*>(&exception)) error = e->code().value();
  if (const auto* e = dynamic_cast<const boost::system::system_error*>(&exception)) {
    error = e->code().value();
  }
  std::string text = std::string{"cannot set up a session: "} + exception.what();
  if (error == EMFILE) text += " (raise the limit of open files, see 'ulimit -n')";
  return {error, std::move(text)};
}

}  // namespace rtrs
