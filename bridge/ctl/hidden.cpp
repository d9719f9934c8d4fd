// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/ctl/hidden.hpp"

#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>

namespace rnbd {
namespace {

namespace fs = std::filesystem;
using Texts = std::vector<std::string>;

// ---- Programs with a socket ---------------------------------------------------------------------

/// The places where units have control sockets, and the documentation puts them.
constexpr const char* kPlaces[] = {"/run/rnbd/*.control", "/run/rnbd/map/*.control",
                                   "/run/rnbd-bridge/*/control", "/run/rnbd-server/control"};

bool is_there_a_socket(const std::string& path) {
  std::error_code ignored;
  return fs::is_socket(path, ignored);
}

std::string name_of_program(const fs::path& socket) {
  if (socket.extension() == ".control") return socket.stem();
  const std::string folder = socket.parent_path().filename();
  return folder == "rnbd-server" ? "server" : folder;
}

// ---- Hidden programs ----------------------------------------------------------------------------

constexpr const char* kSocketOfServer = "/run/rnbd-server/control";

/// The paths of sockets by their numbers in the table.
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

/// The sockets that a process has bound to paths. Nothing if it may not be looked into.
std::optional<Texts> sockets_of(const fs::path& process,
                                const std::map<std::string, std::string>& all) {
  Texts paths;
  std::error_code error;
  fs::directory_iterator descriptor{process / "fd", error};
  for (; !error && descriptor != fs::directory_iterator{}; descriptor.increment(error)) {
    std::error_code gone;
    const auto found = all.find(fs::read_symlink(descriptor->path(), gone));
    if (found != all.end()) paths.push_back(found->second);
  }
  return error ? std::nullopt : std::optional{paths};
}

/// A server may have been told by its configuration file, or its unit.
std::string control_among(const Texts& sockets) {
  const auto found = std::ranges::find_if(sockets, [](const fs::path& path) {
    return path.filename() == "control" || path.extension() == ".control";
  });
  return found != sockets.end() ? *found : "";
}

/// The path as the process means it. "" stays so.
std::string absolute(const fs::path& process, const std::string& path) {
  std::error_code ignored;
  return path.empty() || path.starts_with('/')
             ? path
             : (fs::read_symlink(process / "cwd", ignored) / path).string();
}

bool is_one_of(const std::string& path, const std::vector<CtlProgram>& known) {
  return std::ranges::any_of(known,
                             [&](const CtlProgram& program) { return is_path_of(path, program); });
}

std::string text_about(const std::string& root, Kind kind, const std::string& process,
                       const std::string& control, const std::vector<CtlProgram>& known) {
  const std::string name = kind == Kind::server   ? "rnbd-server"
                           : kind == Kind::bridge ? "rnbd-bridge"
                                                  : "nbdkit";
  const std::string who = name + ", process " + process + ", is not shown: ";
  if (!control.empty()) {
    return who + "its control socket is elsewhere; ask it with rnbd-ctl " + control + " status";
  }
  const bool first = kind == Kind::server && !is_one_of(root + kSocketOfServer, known);
  const std::string option = first                  ? std::string{"--control "} + kSocketOfServer
                             : kind == Kind::plugin ? "control=/run/rnbd/NAME.control"
                                                    : "--control /run/rnbd/NAME.control";
  // Programs do not make it: most of those that are missing are spelt wrong.
  const std::string folder = first ? "/run/rnbd-server" : "/run/rnbd";
  std::error_code ignored;
  const bool is_there = fs::is_directory(root + folder, ignored);
  return who + "it has no control socket; " + (is_there ? "" : "mkdir " + folder + ", and ") +
         "start it with " + option;
}

/// True: it is in a PID namespace below that of this /proc.
bool is_contained(const fs::path& process) {
  std::ifstream status{process / "status"};
  for (std::string line; std::getline(status, line);) {
    std::istringstream words{line};
    std::string word, here, there;
    if (words >> word && word == "NSpid:") return words >> here >> there && !there.empty();
  }
  return false;
}

/// Nothing: it is known, or is no program of ours.
std::optional<HiddenProgram> hidden_at(const std::string& root, const fs::path& process,
                                       const std::map<std::string, std::string>& sockets,
                                       const std::vector<CtlProgram>& known) {
  const Texts arguments = arguments_of(process);
  const Kind kind = kind_of(arguments);
  if (kind == Kind::other) return std::nullopt;
  const bool is_server = kind == Kind::server;
  const auto its = sockets_of(process, sockets);
  if (its &&
      std::ranges::any_of(*its, [&](const std::string& path) { return is_one_of(path, known); })) {
    return std::nullopt;
  }
  // Names of its sockets are names of another place.
  if (is_contained(process)) {
    return HiddenProgram{
        .server = is_server, .text = "", .contained = true, .process = process.filename()};
  }
  std::string control = control_in(arguments);
  // The process is of another user, or has ended. In the usual place its socket may be, unseen.
  const bool usual = control.empty() || control.starts_with("/run/rnbd");
  if (!its && (!is_server || usual)) return std::nullopt;
  // One that is just starting has none yet in the usual place.
  const bool is_bridge = kind == Kind::bridge && !control.starts_with("/run/rnbd");
  if (control == "none") control.clear();
  if (control.empty() && is_server && its) control = control_among(*its);
  return HiddenProgram{.server = is_server,
                       .text = text_about(root, kind, process.filename(), control, known),
                       .socket = absolute(process, control),
                       .is_bridge = is_bridge,
                       .process = process.filename()};
}

}  // namespace

std::vector<CtlProgram> find_programs(const std::string& root) {
  std::vector<CtlProgram> programs;
  for (const char* place : kPlaces) {
    glob_t found{};
    if (::glob((root + place).c_str(), 0, nullptr, &found) == 0) {
      for (std::size_t i = 0; i < found.gl_pathc; ++i) {
        const std::string path = found.gl_pathv[i];
        if (is_there_a_socket(path)) programs.push_back({name_of_program(path), path});
      }
    }
    ::globfree(&found);
  }
  return programs;
}

std::vector<CtlClosedFolder> find_closed_folders(const std::string& root) {
  std::vector<CtlClosedFolder> closed;
  const auto look = [&](const fs::path& folder, const char* name) {
    std::error_code error;
    if (name == nullptr)
      fs::directory_iterator{folder, error};
    else
      (void)fs::status(folder / name, error);
    if (error == std::errc::permission_denied)
      closed.push_back({folder, folder.filename() == "rnbd-server"});
    return error;
  };
  look(root + "/run/rnbd", nullptr);
  look(root + "/run/rnbd/map", nullptr);
  look(root + "/run/rnbd-server", "control");
  if (look(root + "/run/rnbd-bridge", nullptr)) return closed;
  std::error_code error;
  fs::directory_iterator bridge{root + "/run/rnbd-bridge", error};
  for (; !error && bridge != fs::directory_iterator{}; bridge.increment(error)) {
    look(bridge->path(), "control");
  }
  return closed;
}

std::string places_of_programs(const std::string& root) {
  std::string text;
  for (const char* place : kPlaces) text += (text.empty() ? "" : ", ") + root + place;
  return text;
}

std::vector<HiddenProgram> find_hidden_programs(const std::string& root,
                                                const std::vector<CtlProgram>& known) {
  std::vector<HiddenProgram> hidden;
  const std::map<std::string, std::string> sockets = paths_of_sockets(root);
  std::error_code error;
  fs::directory_iterator entry{root + "/proc", error};
  for (; !error && entry != fs::directory_iterator{}; entry.increment(error)) {
    const std::string process = entry->path().filename();
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    if (auto found = hidden_at(root, entry->path(), sockets, known)) {
      hidden.push_back(*std::move(found));
    }
  }
  return hidden;
}

}  // namespace rnbd
