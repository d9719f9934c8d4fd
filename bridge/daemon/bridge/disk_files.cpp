// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/daemon/bridge/disk_files.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>

#include "bridge/kernel/mapping.hpp"

namespace rnbd {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kProgram = "rnbd-bridge: ";

tl::expected<Mapping, std::string> mapping_at(const std::string& path) {
  std::ifstream file{path};
  if (!file) return tl::unexpected(path + " cannot be read");
  std::stringstream text;
  text << file.rdbuf();
  return read_mapping(fs::path{path}.stem(), text.str());
}

/// The sentence in a message for standard error.
std::string sentence_in(std::string text) {
  if (text.starts_with(kProgram)) text.erase(0, kProgram.size());
  return text.substr(0, text.find('\n'));
}

tl::expected<BridgeOptions, std::string> options_of(const Mapping& mapping) {
  std::vector<const char*> words{"rnbd-bridge", "--kernel", mapping.kernel.c_str(), "--map-name",
                                 mapping.name.c_str()};
  for (const std::string& option : mapping.options) words.push_back(option.c_str());
  words.push_back(mapping.uri.c_str());
  auto options = parse_bridge_options(static_cast<int>(words.size()), words.data());
  if (!options) return tl::unexpected(sentence_in(options.error().text));
  return *std::move(options);
}

}  // namespace

DiskFiles::DiskFiles(std::string key, std::vector<std::string> folders)
    : key_{std::move(key)}, folders_{std::move(folders)} {}

std::set<std::string> DiskFiles::names() const {
  std::set<std::string> names;
  for (const std::string& folder : folders_) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator{folder, error}) {
      if (entry.path().extension() == ".conf") names.insert(entry.path().stem());
    }
  }
  std::erase_if(names, [this](const std::string& name) {
    const auto mapping = mapping_at(path_of(name));
    return !mapping || mapping->bridge != key_;
  });
  return names;
}

std::string DiskFiles::path_of(const std::string& name) const {
  std::string path;
  for (const std::string& folder : folders_) {
    std::error_code ignored;
    std::string candidate = folder + "/" + name + ".conf";
    if (path.empty() || fs::exists(candidate, ignored)) path = std::move(candidate);
  }
  return path;
}

tl::expected<BridgeOptions, std::string> DiskFiles::read(const std::string& name) const {
  const auto mapping = mapping_at(path_of(name));
  if (!mapping) return tl::unexpected(mapping.error());
  if (mapping->bridge != key_) {
    return tl::unexpected(path_of(name) + " does not name this bridge, " + key_);
  }
  const std::string text = session_text(*mapping);
  if (text.empty() || (!session_text_.empty() && text != session_text_)) {
    return tl::unexpected("what " + path_of(name) +
                          " says belongs to another bridge; write `rnbd-ctl unmap " + name +
                          "`, and map it anew");
  }
  return options_of(*mapping);
}

/// The form of keys may have been another when the files were written: then they are compared among
/// each other. A file that was changed has another key, too, so those with this key come first.
tl::expected<BridgeOptions, std::string> DiskFiles::session() {
  std::string wrong = "no file of a disk names this bridge, " + key_;
  std::vector<Mapping> all;
  for (const std::string& name : names()) {
    if (auto mapping = mapping_at(path_of(name))) all.push_back(*std::move(mapping));
  }
  std::stable_partition(all.begin(), all.end(),
                        [this](const Mapping& mapping) { return bridge_key(mapping) == key_; });
  for (const Mapping& mapping : all) {
    auto options = read(mapping.name);
    if (!options) {
      wrong = mapping.name + ": " + options.error();
      continue;
    }
    session_text_ = session_text(mapping);
    options->kernel.reset();
    static_cast<DiskConfig&>(options->client) = {};
    options->client.dynamic_export = true;
    return options;
  }
  return tl::unexpected(wrong);
}

}  // namespace rnbd
