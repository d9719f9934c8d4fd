// SPDX-License-Identifier: BSD-3-Clause
// Keys that systemd hands over to a service, in place of files that its user could read.
#pragma once

#include <string_view>

namespace rtrs {

/// The beginning of such a name, credential:NAME, where TlsKeys has the name of a file or
/// directory. It is a directory if LoadCredential=NAME:DIRECTORY hands it over.
///
/// Source: systemd.exec(5), CREDENTIALS.
inline constexpr std::string_view kCredential = "credential:";

}  // namespace rtrs
