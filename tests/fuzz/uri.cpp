// SPDX-License-Identifier: BSD-3-Clause
// Input: a URI of a device, then lines KEY=VALUE, as the plugin gets them.
#include "bridge/client/uri.hpp"

#include <algorithm>
#include <string>
#include <string_view>

#include "bridge/client/config.hpp"
#include "bridge/protocol/messages.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace rnbd;

namespace {

std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), text.size()));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

void check(std::string_view text, const DeviceUri& uri) {
  fuzz::require(!uri.host.empty() && uri.port != 0, "a URI names a server");
  fuzz::require(uri.device.empty() || complaint_about_device_name(uri.device).empty(),
                "a device has a name that a server can be asked for");
  fuzz::require(uri.tls == text.starts_with("rnbds"), "its scheme alone says that it is encrypted");
  fuzz::require(!uri.tls || uri.transport == rtrs::TransportKind::tcp, "RDMA does not encrypt");
  fuzz::require(uri.user.find(':') == std::string::npos, "a URI has no password");
  fuzz::require(uri.servers.size() != 1 && uri.servers.size() <= schemes_of_several().front().most,
                "a mirror has several servers");
}

void check(const ClientConfig& config, bool encrypted) {
  fuzz::require(!config.paths.empty(), "there is a path to the server");
  fuzz::require(!encrypted || config.tls == rtrs::TlsMode::require,
                "no word takes the encryption out that the URI asks for");
  fuzz::require(config.tls == rtrs::TlsMode::off || !config.tls_keys.none(), "TLS has keys");
  fuzz::require(config.tls != rtrs::TlsMode::off || config.tls_keys.none(),
                "keys are not named for nothing");
  std::vector<rtrs::PathAddress> all = config.paths;
  if (!config.servers.empty()) {
    for (const auto& member : config.servers) {
      all.insert(all.end(), member.begin(), member.end());
    }
  }
  for (const rtrs::PathAddress& path : all) {
    const bool tcp = path.transport == rtrs::TransportKind::tcp;
    fuzz::require(tcp || config.tls == rtrs::TlsMode::off, "no path is less safe than the session");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text{reinterpret_cast<const char*>(data), size};
  const std::string_view name = take_line(text);
  const auto uri = parse_device_uri(name);
  fuzz::require(uri || !uri.error().empty(), "a URI that is refused is refused with a sentence");
  if (uri) check(name, *uri);

  ConfigReader reader;
  auto done = reader.set("uri", name);
  while (done && !text.empty()) {
    const std::string_view line = take_line(text);
    const std::size_t equals = std::min(line.find('='), line.size());
    done = reader.set(line.substr(0, equals), line.substr(std::min(equals + 1, line.size())));
  }
  fuzz::require(done || !done.error().empty(), "so is a key");
  if (!done) return 0;
  const auto config = reader.complete();
  fuzz::require(config || !config.error().empty(), "so is what contradicts itself");
  if (config) check(*config, uri && uri->tls);
  return 0;
}
