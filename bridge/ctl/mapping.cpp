// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/mapping.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "bridge/client/uri.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;

template <class Value>
using OrSentence = tl::expected<Value, std::string>;

constexpr std::size_t kLongestName = 64;
constexpr std::string_view kInNames =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
/// Characters with a meaning of their own in the file, or in the unit that splits OPTIONS.
constexpr std::string_view kTrouble = "\"'\\`$ \t\r\n";
constexpr std::string_view kBegin = "nbd";

/// disk0 for disk0, sdb for /dev/sdb.
std::string last_part(const std::string& device) {
  return device.substr(device.find_last_of('/') + 1);
}

std::string escaped(const std::string& device) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string text;
  for (const char c : device) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = kInNames.find(c) != std::string_view::npos || c == '/';
    text += plain ? std::string{c} : std::string{'%', kHex[byte >> 4U], kHex[byte & 15U]};
  }
  return text;
}

OrSentence<std::string> uri_of(const CtlAction& action) {
  const std::string& device = action.names.front();
  const bool is_uri = device.find("://") != std::string::npos;
  if (is_uri && !action.server.empty()) {
    return tl::unexpected(std::string{"the URI names the server; leave `from` out"});
  }
  if (is_uri) return device;
  const std::size_t slash = device.find('/');
  if (action.server.empty() && slash != 0 && slash != std::string::npos) {
    const std::string host = device.substr(0, slash), rest = device.substr(slash + 1);
    return tl::unexpected("the server is missing, unless " + host + " is one: then write map " +
                          rest + " from " + host + ", or map rnbd+tcp://" + device +
                          "; else write map " + device + " from SERVER");
  }
  if (action.server.empty()) {
    return tl::unexpected("write map " + device + " from SERVER, or map rnbd+tcp://SERVER/" +
                          device);
  }
  const std::string server = uri_of_server(action.server, action.rdma ? "rdma" : "tcp");
  if (action.rdma && server.find("+tcp://") != std::string::npos) {
    return tl::unexpected("rdma and " + action.server + " exclude each other; write one of them");
  }
  return server + "/" + escaped(device);
}

OrSentence<std::string> kernel_of(const std::string& device) {
  if (device.empty()) return std::string{kBegin};
  const std::string number = device.substr(std::min(kBegin.size(), device.size()));
  if (!device.starts_with(kBegin) || number.empty() || number.size() > 6 ||
      number.find_first_not_of("0123456789") != std::string::npos) {
    return tl::unexpected("'" + device + "' is no device of the kernel; write e.g. as nbd3");
  }
  return std::string{kBegin} + ":" + number;
}

std::string complaint_about_text(const std::string& text) {
  if (text.find_first_of(kTrouble) == std::string::npos) return "";
  return "'" + text + "' has a blank, a quote, '\\', '`' or '$' in it; write %XX in a URI, and " +
         "avoid it in options";
}

OrSentence<std::vector<std::string>> options_of(const CtlAction& action,
                                                rtrs::TransportKind transport) {
  std::vector<std::string> options;
  for (const std::string& given : action.paths) {
    const std::string path = without_ip(given);
    if (auto parsed = parse_path(path, transport); !parsed) return tl::unexpected(parsed.error());
    options.insert(options.end(), {"--path", path});
  }
  if (action.paths_of_server) options.insert(options.end(), {"--paths", "auto"});
  if (!action.access.empty()) options.insert(options.end(), {"--access", action.access});
  options.insert(options.end(), action.options.begin(), action.options.end());
  for (const std::string& option : options) {
    if (std::string wrong = complaint_about_text(option); !wrong.empty()) {
      return tl::unexpected(wrong);
    }
  }
  return options;
}

/// "" or the reason why a mapping cannot have the name.
std::string complaint_about_name(const std::string& name) {
  if (name.empty()) return "the name is missing; write --name NAME";
  if (name.size() > kLongestName)
    return "'" + name + "' is longer than 64 bytes; write --name NAME";
  const bool plain = name.find_first_not_of(kInNames) == std::string::npos;
  if (plain && name.front() != '.' && name.front() != '-') return "";
  return "'" + name +
         "' cannot be the name of a mapping: letters, digits, '_', '.' and '-', a "
         "letter or digit first; write --name NAME";
}

OrSentence<Mapping> mapping_at(const std::string& path, const std::string& name) {
  std::stringstream text;
  text << std::ifstream{path}.rdbuf();
  return read_mapping(name, text.str());
}

}  // namespace

tl::expected<Mapping, std::string> mapping_of(const CtlAction& action) {
  const auto uri = uri_of(action);
  if (!uri) return tl::unexpected(uri.error());
  const auto parsed = parse_device_uri(*uri);
  if (!parsed) return tl::unexpected(parsed.error());
  if (parsed->device.empty()) {
    return tl::unexpected("the URI names no device; write " + *uri + "/DEVICE");
  }
  const std::string name = action.map_name.empty() ? last_part(parsed->device) : action.map_name;
  std::string wrong = complaint_about_name(name);
  if (wrong.empty()) wrong = complaint_about_text(*uri);
  if (!wrong.empty()) return tl::unexpected(wrong);
  auto kernel = kernel_of(action.kernel_device);
  if (!kernel) return tl::unexpected(kernel.error());
  auto options = options_of(action, parsed->transport);
  if (!options) return tl::unexpected(options.error());
  Mapping mapping{name, *uri, *std::move(kernel), *std::move(options)};
  if (!action.own_process) mapping.bridge = bridge_key(mapping);
  return mapping;
}

std::string command_for(const Mapping& mapping) {
  const std::size_t colon = mapping.kernel.find(':');
  std::string command = "rnbd-ctl map " + mapping.uri + " --name " + mapping.name;
  if (colon != std::string::npos) {
    command += " --as " + std::string{kBegin} + mapping.kernel.substr(colon + 1);
  }
  if (mapping.bridge.empty() && !bridge_key(mapping).empty()) command += " --own-process";
  command += " --persist";
  if (!mapping.options.empty()) command += " --";
  for (const std::string& option : mapping.options) command += " " + option;
  return command;
}

std::string bridge_of(const Mapping& mapping) {
  return mapping.bridge.empty() ? mapping.name : mapping.bridge;
}

std::string folder_of_mappings(const std::string& root, bool persist) {
  return root + (persist ? "/etc" : "/run") + "/rnbd/map.d";
}

std::string path_of_mapping(const std::string& root, const std::string& name, bool persist) {
  return folder_of_mappings(root, persist) + "/" + name + ".conf";
}

std::set<std::string> names_of_mapping_files(const std::string& root, bool persist) {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator{folder_of_mappings(root, persist), error}) {
    if (entry.path().extension() == ".conf") names.insert(entry.path().stem());
  }
  return names;
}

std::set<std::string> names_of_mappings(const std::string& root) {
  std::set<std::string> names = names_of_mapping_files(root, true);
  names.merge(names_of_mapping_files(root, false));
  return names;
}

std::vector<std::string> files_of_mapping(const std::string& root, const std::string& name) {
  std::vector<std::string> files;
  std::error_code ignored;
  for (const bool persist : {false, true}) {
    const std::string path = path_of_mapping(root, name, persist);
    if (fs::exists(path, ignored)) files.push_back(path);
  }
  return files;
}

std::vector<Mapping> mappings_of_bridge(const std::string& root, const std::string& key,
                                        bool persist) {
  std::vector<Mapping> all;
  for (const std::string& name : names_of_mapping_files(root, persist)) {
    auto mapping = mapping_at(path_of_mapping(root, name, persist), name);
    if (mapping && mapping->bridge == key) all.push_back(*std::move(mapping));
  }
  return all;
}

std::optional<KernelDevice> device_called(const std::string& root, const std::string& name) {
  const auto devices = find_kernel_devices(root);
  const auto found = std::ranges::find(devices, name, &KernelDevice::name);
  return found != devices.end() ? std::optional{*found} : std::nullopt;
}

FoundMapping find_mapping(const std::string& root, const std::string& word) {
  const std::string name = word.starts_with("/dev/") ? word.substr(5) : word;
  FoundMapping found{name, find_kernel_device(root, name), {}};
  if (found.device) {
    found.name = found.device->name;
  } else {
    found.device = device_called(root, name);
  }
  found.files = files_of_mapping(root, found.name);
  return found;
}

tl::expected<Mapping, std::string> mapping_in(const FoundMapping& found) {
  if (found.files.empty()) {
    return tl::unexpected("there is no file of the mapping " + found.name +
                          "; rnbd-ctl did not make it");
  }
  return mapping_at(found.files.back(), found.name);
}

}  // namespace rnbd
