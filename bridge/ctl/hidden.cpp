// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/hidden.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string_view>

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

/// By their numbers in the table of sockets.
std::map<std::string, std::string> paths_of_sockets(const std::string& root) {
  std::map<std::string, std::string> paths;
  std::ifstream table{root + "/proc/net/unix"};
  std::string line;
  std::getline(table, line);  // headings
  while (std::getline(table, line)) {
    std::istringstream words{line};
    std::string skipped, inode, path;
    for (int i = 0; i < 6; ++i) words >> skipped;
    if (words >> inode >> path) paths["socket:[" + inode + "]"] = path;
  }
  return paths;
}

Texts arguments_of(const fs::path& process) {
  Texts words;
  std::ifstream line{process / "cmdline"};
  for (std::string word; std::getline(line, word, '\0');) words.push_back(word);
  return words;
}

enum class Kind { other, server, bridge, plugin };

Kind kind_of(const Texts& arguments) {
  if (arguments.empty()) return Kind::other;
  const std::string program = fs::path{arguments.front()}.filename();
  if (program == "rnbd-server") return Kind::server;
  if (program == "rnbd-bridge") return Kind::bridge;
  const bool with_plugin = std::ranges::any_of(arguments, [](const std::string& word) {
    return word == "rnbd" || word.ends_with("nbdkit-rnbd-plugin.so");
  });
  return program == "nbdkit" && with_plugin ? Kind::plugin : Kind::other;
}

/// "": it was given none.
std::string control_in(const Texts& arguments) {
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string_view word = arguments[i];
    if (word == "--control" && i + 1 < arguments.size()) return arguments[i + 1];
    for (const std::string_view begin : {"--control=", "control="}) {
      if (word.starts_with(begin)) return std::string{word.substr(begin.size())};
    }
  }
  return "";
}

/// Sockets may be bound by a path that is relative.
bool is_path_of(const std::string& path, const CtlProgram& program) {
  return path == program.socket || (!path.starts_with('/') && program.socket.ends_with('/' + path));
}

std::string text_about(const std::string& root, Kind kind, const std::string& process,
                       const std::string& control) {
  const std::string name = kind == Kind::server   ? "rnbd-server"
                           : kind == Kind::bridge ? "rnbd-bridge"
                                                  : "nbdkit";
  const std::string who = name + ", process " + process + ", is not shown: ";
  if (!control.empty() && control != "none") {
    return who + "its control socket is elsewhere; ask it with rnbd-ctl " + control + " status";
  }
  const std::string option = kind == Kind::server   ? "--control /run/rnbd-server/control"
                             : kind == Kind::bridge ? "--control /run/rnbd/NAME.control"
                                                    : "control=/run/rnbd/NAME.control";
  // Programs do not make it: most of those that are missing are spelt wrong.
  const std::string folder = kind == Kind::server ? "/run/rnbd-server" : "/run/rnbd";
  std::error_code ignored;
  const bool is_there = fs::is_directory(root + folder, ignored);
  return who + "it has no control socket; " + (is_there ? "" : "mkdir " + folder + ", and ") +
         "start it with " + option;
}

}  // namespace

std::vector<HiddenProgram> find_hidden_programs(const std::string& root,
                                                const std::vector<CtlProgram>& known) {
  std::vector<HiddenProgram> hidden;
  std::map<std::string, std::string> sockets;
  std::error_code error;
  fs::directory_iterator entry{root + "/proc", error};
  for (; !error && entry != fs::directory_iterator{}; entry.increment(error)) {
    const std::string process = entry->path().filename();
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    const Texts arguments = arguments_of(entry->path());
    const Kind kind = kind_of(arguments);
    if (kind == Kind::other) continue;
    if (sockets.empty()) sockets = paths_of_sockets(root);
    std::error_code closed;
    fs::directory_iterator descriptor{entry->path() / "fd", closed};
    bool is_known = bool{closed};  // of another user, or it has ended
    for (; !closed && descriptor != fs::directory_iterator{}; descriptor.increment(closed)) {
      std::error_code gone;
      const auto found = sockets.find(fs::read_symlink(descriptor->path(), gone));
      is_known = is_known || (found != sockets.end() &&
                              std::ranges::any_of(known, [&](const CtlProgram& program) {
                                return is_path_of(found->second, program);
                              }));
    }
    if (is_known) continue;
    hidden.push_back(
        {kind == Kind::server, text_about(root, kind, process, control_in(arguments))});
  }
  return hidden;
}

}  // namespace rnbd
