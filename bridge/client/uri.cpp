// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/client/uri.hpp"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "bridge/protocol/messages.hpp"
#include "bridge/protocol/printable.hpp"
#include "rdma/host_name.hpp"

namespace rnbd {
namespace {

using Error = tl::unexpected<std::string>;

/// The right forms, for messages.
std::string forms() {
  std::string text =
      "write rnbd+tcp://HOST[:PORT]/DEVICE (TCP), rnbds+tcp://[USER@]HOST[:PORT]/DEVICE (TCP with "
      "TLS) or rnbd://HOST[:PORT]/DEVICE (RDMA)";
  for (const SchemeOfSeveral& scheme : schemes_of_several()) {
    text += std::string{"; of "} + scheme.name + ", rnbd-" + std::string{scheme.word} +
            "+tcp://HOST[:PORT],HOST[:PORT]/DEVICE";
  }
  return text;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

tl::expected<std::string, std::string> percent_decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    int low = i + 2 < text.size() ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      return Error{"'%' in " + in_quotes(text) +
                   " must be followed by two hexadecimal digits; write %25 for a percent sign"};
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

bool good_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
         c == '-' || c == '_';
}

tl::expected<std::uint16_t, std::string> parse_port(std::string_view text) {
  unsigned port = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size() || port == 0 || port > 65535) {
    return Error{"port " + in_quotes(text) + " is not a number from 1 to 65535"};
  }
  return static_cast<std::uint16_t>(port);
}

/// The inside of brackets: an IPv6 address, perhaps with a zone, or gid: and the address of a port
/// of an RDMA device.
tl::expected<std::string, std::string> parse_ipv6(std::string_view text) {
  if (constexpr std::string_view kGid = "gid:"; text.starts_with(kGid)) {
    auto gid = parse_ipv6(text.substr(kGid.size()));
    if (!gid || gid->find('%') != std::string::npos) {
      return Error{"[" + std::string{text} + "] is not a GID; write e.g. [gid:fe80::1]"};
    }
    return std::string{kGid} + *gid;
  }
  auto decoded = percent_decode(text);
  // A zone may be written as is (fe80::1%eth0) or as URIs want it (fe80::1%25eth0).
  std::string address = decoded ? *decoded : std::string{text};
  std::string_view digits = std::string_view{address}.substr(0, address.find('%'));
  bool plausible =
      std::count(digits.begin(), digits.end(), ':') >= 2 &&
      std::all_of(digits.begin(), digits.end(),
                  [](char c) { return hex_digit(c) >= 0 || c == ':' || c == '.'; }) &&
      std::all_of(address.begin() + static_cast<std::ptrdiff_t>(digits.size()), address.end(),
                  [](char c) { return good_host_character(c) || c == '%'; });
  if (!plausible) {
    return Error{"[" + std::string{text} + "] is not an IPv6 address"};
  }
  return address;
}

/// The source of a path has no port, so that a bare IPv6 address cannot be misread.
tl::expected<std::string, std::string> parse_source(std::string_view text) {
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') {
    return parse_ipv6(text.substr(1, text.size() - 2));
  }
  if (text.find(':') != std::string_view::npos) return parse_ipv6(text);
  if (text.empty() || !std::all_of(text.begin(), text.end(), good_host_character)) {
    return Error{"source address " + in_quotes(text) + " is not an address of this machine"};
  }
  return std::string{text};
}

/// "[fe80::1]", or, where the end may be a port, "[::1]:1300, or [::1:1300] without a port".
std::string in_brackets(std::string_view text) {
  const std::string all = "[" + std::string{text} + "]";
  const std::size_t colon = text.rfind(':');
  const std::string_view address = text.substr(0, colon);
  if (!parse_port(text.substr(colon + 1)) || !parse_ipv6(address)) return all;
  return "[" + std::string{address} + "]" + std::string{text.substr(colon)} + ", or " + all +
         " if all of it is the address";
}

/// `key=value[&key=value ...]`
tl::expected<std::vector<std::pair<std::string, std::string>>, std::string> parse_query(
    std::string_view query) {
  std::vector<std::pair<std::string, std::string>> options;
  for (std::string_view rest = query; !rest.empty();) {
    const std::string_view part = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(part.size() + 1, rest.size()));
    const std::size_t equals = part.find('=');
    const auto value = percent_decode(part.substr(std::min(equals + 1, part.size())));
    if (equals == std::string_view::npos || !value) {
      return Error{"behind '?' in the URI are " + in_quotes(part) +
                   " and no KEY=VALUE; write '?' as " + "%3F if it belongs to the device name"};
    }
    options.emplace_back(part.substr(0, equals), *value);
  }
  return options;
}

constexpr const char* kPathForm = "[tcp:|rdma:][SRC@]DST[:PORT][,preference=N]";

/// `,preference=n`, or nothing: 0.
tl::expected<int, std::string> parse_preference(std::string_view text) {
  constexpr std::string_view kKey = ",preference=";
  if (text.empty()) return 0;
  if (!text.starts_with(kKey)) {
    return Error{"behind the address of a path only preference=N is possible, not " +
                 in_quotes(text.substr(1)) + "; write " + std::string{kPathForm}};
  }
  text.remove_prefix(kKey.size());
  int number = 0;
  const auto [end, error] = std::from_chars(text.begin(), text.end(), number);
  if (error == std::errc{} && end == text.end() && std::abs(number) <= rtrs::kMaxPreference) {
    return number;
  }
  return Error{"the preference of a path is a number from -9 to 9; write " +
               std::string{kPathForm} + ", as in 10.0.0.2,preference=-1"};
}

/// It names a key.
bool may_have_user(const DeviceUri& uri) {
  return uri.tls || std::ranges::any_of(uri.options, [](const auto& option) {
           return option.first == "auth-psk-file";
         });
}

/// Takes the user, which only a URI with a key has. Returns the rest: HOST[:PORT].
tl::expected<std::string_view, std::string> take_user(DeviceUri& uri, std::string_view authority) {
  const std::size_t at = authority.rfind('@');
  if (at == std::string_view::npos || !may_have_user(uri)) return authority;
  auto user = percent_decode(authority.substr(0, at));
  if (!user) return Error{user.error()};
  if (user->empty()) return Error{"the user in front of '@' is missing"};
  if (user->find(':') != std::string::npos) {
    return Error{
        "a URI has no password: name a file with tls-psk-file, and leave out what is "
        "behind the ':' of the user"};
  }
  uri.user = *std::move(user);
  return authority.substr(at + 1);
}

}  // namespace

std::string complaint_about_device_name(std::string_view name) {
  if (name.empty()) return "the device name is empty";
  if (name.size() > wire::kMaxDeviceName) {
    return "the device name has " + std::to_string(name.size()) + " bytes; at most " +
           std::to_string(wire::kMaxDeviceName) + " are possible";
  }
  bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  });
  if (control) return "the device name " + in_quotes(name) + " has control characters";
  return "";
}

std::string plain_path(std::string_view name) {
  std::string path;
  for (std::string_view rest = name; !rest.empty();) {
    const std::size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view component = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (component.empty() || component == ".") continue;
    if (!path.empty()) path += '/';
    path += component;
  }
  return path.empty() ? std::string{name} : path;
}

tl::expected<std::string, std::string> parse_local_host(std::string_view text) {
  constexpr std::string_view kZoneInUri = "%25";
  std::string host{text};
  if (const std::size_t at = host.find(kZoneInUri); at != std::string::npos) {
    host.replace(at, kZoneInUri.size(), "%");
  }
  // Source: RFC 4291, link-local addresses: fe80::/10.
  const bool link_local = host.size() > 4 && hex_digit(host[0]) == 0xf &&
                          hex_digit(host[1]) == 0xe && hex_digit(host[2]) >= 0x8 &&
                          hex_digit(host[2]) <= 0xb && host[4] == ':';
  if (!link_local || host.find('%') != std::string::npos) return host;
  return Error{"the link-local address needs its interface; write e.g. [" + host + "%eth0]"};
}

tl::expected<HostPort, std::string> parse_host_port(std::string_view text, std::uint16_t port) {
  HostPort result{"", port};
  std::string_view rest;
  if (!text.empty() && text.front() == '[') {
    std::size_t close = text.find(']');
    if (close == std::string_view::npos) return Error{"']' is missing in " + in_quotes(text)};
    auto address = parse_ipv6(text.substr(1, close - 1));
    if (!address) return Error{address.error()};
    result.host = *address;
    rest = text.substr(close + 1);
  } else {
    if (std::count(text.begin(), text.end(), ':') > 1) {
      return Error{"put the IPv6 address in brackets: " + in_brackets(text)};
    }
    std::size_t colon = std::min(text.find(':'), text.size());
    result.host = text.substr(0, colon);
    rest = text.substr(colon);
    if (result.host.empty()) return Error{"the host is missing in " + in_quotes(text)};
    if (!std::all_of(result.host.begin(), result.host.end(), good_host_character)) {
      return Error{in_quotes(result.host) + " is not a host name or address"};
    }
    const std::string wrong = rtrs::complaint_about_host_name(result.host);
    if (!wrong.empty()) return Error{in_quotes(result.host) + ": " + wrong};
  }
  if (rest.empty()) return result;
  if (rest.front() != ':') {
    return Error{"only a port may follow the address in " + in_quotes(text)};
  }
  auto given = parse_port(rest.substr(1));
  if (!given) return Error{given.error()};
  result.port = *given;
  return result;
}

namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(separator, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

/// `host,host`: servers, each of which may have several paths, `path+path`.
tl::expected<void, std::string> parse_servers(std::string_view text, const SchemeOfSeveral& scheme,
                                              DeviceUri& uri) {
  const std::string form = std::string{"; "} + scheme.form;
  std::vector<rtrs::PathAddress> all;
  for (const std::string_view server : split(text, ',')) {
    auto& paths = uri.servers.emplace_back();
    for (const std::string_view name : split(server, '+')) {
      auto path = parse_path(name, uri.transport);
      if (!path) return Error{path.error() + form};
      if (std::ranges::find(all, *path) != all.end()) {
        return Error{in_quotes(name) + " is there twice; each server of " + scheme.name +
                     " keeps one copy, so name another one"};
      }
      all.push_back(*path);
      paths.push_back(*std::move(path));
    }
  }
  if (uri.servers.size() < 2 || uri.servers.size() > scheme.most) {
    return Error{std::string{scheme.name} + " has 2 to " + std::to_string(scheme.most) +
                 " servers, not " + std::to_string(uri.servers.size()) + form};
  }
  uri.host = all.front().host;
  uri.port = all.front().port;
  return {};
}

/// `rnbd[s][-WORD][+tcp]`
tl::expected<const SchemeOfSeveral*, std::string> parse_scheme(std::string_view scheme,
                                                               DeviceUri& uri) {
  constexpr std::string_view kTcp = "+tcp";
  const auto unknown = [&] {
    return Error{"unknown scheme " + in_quotes(scheme) + "; " + forms()};
  };
  std::string_view rest = scheme;
  const bool tcp = rest.ends_with(kTcp);
  if (tcp) rest.remove_suffix(kTcp.size());
  uri.transport = tcp ? rtrs::TransportKind::tcp : rtrs::TransportKind::rdma;
  if (!rest.starts_with("rnbd")) return unknown();
  rest.remove_prefix(4);
  uri.tls = rest.starts_with('s');
  if (uri.tls) rest.remove_prefix(1);
  const SchemeOfSeveral* several = nullptr;
  if (!rest.empty()) {
    const auto schemes = schemes_of_several();
    const auto found = std::ranges::find(schemes, rest.substr(1), &SchemeOfSeveral::word);
    if (rest.front() != '-' || found == schemes.end()) return unknown();
    several = &*found;
    uri.several = several->word;
  }
  if (uri.tls && !tcp) {
    return Error{
        "RDMA does not encrypt, so there is no rnbds://; write rnbds+tcp://HOST/DEVICE for "
        "TLS over TCP, or rnbd://HOST/DEVICE for RDMA in clear"};
  }
  return several;
}

/// `rest`: the slash and the text behind it, or nothing.
tl::expected<DeviceUri, std::string> with_device(DeviceUri uri, std::string_view rest) {
  if (rest.size() <= 1) return uri;  // only the server is named
  auto device = percent_decode(rest.substr(1));
  if (!device) return Error{device.error()};
  if (std::string complaint = complaint_about_device_name(*device); !complaint.empty()) {
    return Error{complaint};
  }
  uri.device = *std::move(device);
  return uri;
}

}  // namespace

tl::expected<DeviceUri, std::string> parse_device_uri(std::string_view text) {
  DeviceUri uri;
  std::size_t scheme_end = text.find("://");
  if (scheme_end == std::string_view::npos) {
    return Error{in_quotes(text) + " is not a URI; " + forms()};
  }
  const auto several = parse_scheme(text.substr(0, scheme_end), uri);
  if (!several) return Error{several.error()};

  std::string_view rest = text.substr(scheme_end + 3);
  if (rest.find('#') != std::string_view::npos) {
    return Error{
        "'#' has no meaning in this URI; write it as %23 if it belongs to the device name"};
  }
  if (const std::size_t query = rest.find('?'); query != std::string_view::npos) {
    auto options = parse_query(rest.substr(query + 1));
    if (!options) return Error{options.error()};
    uri.options = *std::move(options);
    rest = rest.substr(0, query);
  }
  std::size_t slash = std::min(rest.find('/'), rest.size());
  const auto host = take_user(uri, rest.substr(0, slash));
  if (!host) return Error{host.error()};
  if (*several != nullptr) {
    if (auto servers = parse_servers(*host, **several, uri); !servers)
      return Error{servers.error()};
    return with_device(std::move(uri), rest.substr(slash));
  }
  const std::string_view authority = *host;
  if (authority.find('@') != std::string_view::npos) {
    return Error{
        "'@' has no meaning in this URI; name a source address with path=SRC@DST[:PORT], "
        "a user of TLS with rnbds+tcp://USER@HOST, and one who proves a key with "
        "rnbd://USER@HOST/DEVICE?auth-psk-file=FILE"};
  }
  auto address = parse_host_port(authority);
  if (!address) return Error{address.error() + "; " + forms()};
  uri.host = address->host;
  uri.port = address->port;

  return with_device(std::move(uri), rest.substr(slash));
}

tl::expected<rtrs::PathAddress, std::string> parse_path(std::string_view text,
                                                        rtrs::TransportKind transport,
                                                        std::uint16_t port) {
  rtrs::PathAddress path;
  path.transport = transport;
  const std::size_t comma = std::min(text.find(','), text.size());
  const auto preference = parse_preference(text.substr(comma));
  if (!preference) return Error{preference.error()};
  path.preference = *preference;
  std::string_view destination = text.substr(0, comma);
  if (constexpr std::string_view kTcp = "tcp:"; destination.starts_with(kTcp)) {
    path.transport = rtrs::TransportKind::tcp;
    destination.remove_prefix(kTcp.size());
  } else if (constexpr std::string_view kRdma = "rdma:"; destination.starts_with(kRdma)) {
    path.transport = rtrs::TransportKind::rdma;
    destination.remove_prefix(kRdma.size());
  }
  const std::string kForm = std::string{"; write "} + kPathForm;
  if (std::size_t at = destination.find('@'); at != std::string_view::npos) {
    auto source = parse_source(destination.substr(0, at));
    if (!source) return Error{source.error() + kForm};
    path.source = *source;
    destination.remove_prefix(at + 1);
  }
  auto address = parse_host_port(destination, port);
  if (!address) return Error{address.error() + kForm};
  path.host = address->host;
  path.port = address->port;
  return path;
}

}  // namespace rnbd
