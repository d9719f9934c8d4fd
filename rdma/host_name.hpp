// SPDX-License-Identifier: BSD-3-Clause
// Names of hosts: which texts can be one, and why one has no address.
#pragma once

#include <netdb.h>

#include <memory>
#include <string>
#include <string_view>
#include <tl/expected.hpp>

#include "rdma/failure.hpp"

namespace rtrs {

/// A sentence when the text can be no host's name, now or later; "" = it can. A numeric address
/// passes, too.
///
/// Source: RFC 1035, 2.3.4; sizes in characters.
std::string complaint_about_host_name(std::string_view name);

/// The resolver's answer about a name, with the remedy. EHOSTUNREACH: no name server
/// answers, which is about the machine and passes. ENXIO: the answer is that there is no such name.
///
/// Source: getaddrinfo(3), of which `code` is the answer.
Failure no_address_of(std::string_view host, int code);

using AddressList = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

/// The addresses of a host for stream sockets. `flags` are those of getaddrinfo(3).
///
/// Errors:  those of no_address_of().
/// Threads: any; blocks as long as the resolver.
tl::expected<AddressList, Failure> resolve_host(const std::string& host, int flags);

}  // namespace rtrs
