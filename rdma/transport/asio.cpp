// SPDX-License-Identifier: BSD-3-Clause
// Asio's own code, compiled once instead of in every file that uses it.
#include <boost/asio/impl/src.hpp>
