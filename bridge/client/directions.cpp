// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/directions.hpp"

#include <algorithm>

#include "bridge/protocol/messages.hpp"
#include "bridge/protocol/printable.hpp"
#include "bridge/protocol/uuid.hpp"
#include "rdma/path_list.hpp"
#include "rdma/server_id.hpp"

namespace rnbd {
namespace {

using Error = tl::unexpected<std::string>;

constexpr const char* kAddressForm = "; write tcp:HOST[:PORT] or rdma:HOST[:PORT]";
constexpr const char* kReferralForm =
    "; write rnbd+tcp://HOST[:PORT]/DEVICE, rnbds+tcp://HOST[:PORT]/DEVICE or "
    "rnbd://HOST[:PORT]/DEVICE";

/// True for an address to listen on, which no client can connect to.
bool is_every_address(std::string_view host) {
  return host.find_first_not_of("0.:") == std::string_view::npos;
}

/// "" or the mistake.
std::string fault_of_option(const std::string& key, const std::string& value) {
  if (key == "uuid") return parse_uuid(value) ? "" : in_quotes(value) + " is no UUID";
  if (key == "server-id") {
    const auto id = rtrs::parse_server_id(value);
    return id ? "" : id.error();
  }
  return "only uuid= and server-id= may stand behind '?', not " + in_quotes(key + "=");
}

}  // namespace

tl::expected<rtrs::PathAddress, std::string> parse_advertised(std::string_view text) {
  const auto fail = [&](const std::string& why) {
    return Error{in_quotes(text) + ": " + why + kAddressForm};
  };
  if (!text.starts_with("tcp:") && !text.starts_with("rdma:")) {
    return fail("an address begins with its transport");
  }
  if (text.find('@') != std::string_view::npos) return fail("a client knows its own address");
  if (text.find(',') != std::string_view::npos) return fail("nothing may follow the address");
  auto path = parse_path(text, rtrs::TransportKind::tcp);
  if (!path) return Error{in_quotes(text) + ": " + path.error()};
  if (path->host.find('%') != std::string::npos) {
    return fail("the name of an interface means nothing on another machine");
  }
  if (is_every_address(path->host)) return fail("nobody can connect to every address");
  // It travels as a name does.
  if (rtrs::to_string(*path).size() > wire::kMaxDeviceName) return fail("it is too long");
  return path;
}

tl::expected<DeviceUri, std::string> parse_referral(std::string_view text) {
  const auto fail = [&](const std::string& why) {
    return Error{in_quotes(text) + ": " + why + kReferralForm};
  };
  if (text.size() > kMaxReferral) return Error{"the URI of a referral has at most 1024 bytes"};
  auto uri = parse_device_uri(text);
  if (!uri) return Error{in_quotes(text) + ": " + uri.error()};
  if (!uri->servers.empty()) return fail("it names several servers");
  if (!uri->user.empty()) return fail("a client has its own user");
  if (uri->device.empty()) return fail("the device is missing");
  if (is_every_address(uri->host)) return fail("nobody can connect to every address");
  if (uri->host.find('%') != std::string::npos) {
    return fail("the name of an interface means nothing on another machine");
  }
  for (const auto& [key, value] : uri->options) {
    if (const std::string wrong = fault_of_option(key, value); !wrong.empty()) return fail(wrong);
  }
  return uri;
}

}  // namespace rnbd
