// SPDX-License-Identifier: BSD-3-Clause
// The words that rnbd-ctl's own commands are made of, and what each of them does.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

#include "bridge/ctl/words.hpp"

namespace rnbd::ctl_words {

struct SideWord {
  std::string_view word;
  CtlSide side;
};
inline constexpr SideWord kSides[] = {
    {"client", CtlSide::client}, {"server", CtlSide::server}, {"both", CtlSide::both}};

struct ObjectWord {
  std::string_view word;
  CtlObject object;
};
inline constexpr ObjectWord kObjects[] = {
    {"devices", CtlObject::device},   {"device", CtlObject::device},
    {"dev", CtlObject::device},       {"devs", CtlObject::device},
    {"sessions", CtlObject::session}, {"session", CtlObject::session},
    {"sess", CtlObject::session},     {"paths", CtlObject::path},
    {"path", CtlObject::path}};

/// Bits of what stands in front of a verb, or may stand there.
inline constexpr std::uint32_t kClient = 1, kServer = 2, kDevice = 4, kSession = 8, kPath = 16,
                               kAnything = kClient | kServer | kDevice | kSession | kPath;

struct VerbWord {
  std::string_view word;
  CtlVerb verb;
  std::size_t least_names, most_names;
  std::uint32_t about;  ///< whose help has it
  std::string_view form;
  std::string_view help;
};
inline constexpr VerbWord kVerbs[] = {
    {"list", CtlVerb::list, 0, 0, kAnything, "[client|server] list [devices|sessions|paths]",
     "What all running programs have, in one table."},
    {"ls", CtlVerb::list, 0, 0, 0, "", ""},
    {"show", CtlVerb::show, 1, 1, kAnything, "[client|server] show [device|session|path] NAME",
     "All about one of them, also who has it open."},
    {"check", CtlVerb::check, 0, 256, kClient | kServer, "[client|server] check [NAME...]",
     "Whether all is well, for monitoring: exit status 0, 1, 2 or 3 as Nagios has it."},
    {"map", CtlVerb::map, 1, 1, kClient | kDevice,
     "map DEVICE from SERVER [PATH...] | map URI [PATH...]",
     "Make a server's device a disk of this machine, /dev/nbdN."},
    {"unmap", CtlVerb::unmap, 1, 1, kClient | kDevice, "unmap NAME|nbdN", "Take such a disk away."},
    {"remap", CtlVerb::remap, 1, 1, kClient | kDevice | kSession,
     "remap [device] NAME|nbdN | [session] SESSION",
     "Take it away and map it anew; of a session all of its disks."},
    {"resize", CtlVerb::resize, 1, 2, kClient | kDevice, "resize NAME|nbdN [SIZE]",
     "Wait until the kernel has the size that the server has, or SIZE."},
    {"add", CtlVerb::add, 2, 2, kClient | kPath,
     "path add SESSION|DEVICE [SRC@]DST[:PORT][,preference=N]",
     "Gives the session another path to its server."},
    {"delete", CtlVerb::remove, 1, 2, kClient | kPath, "path delete [SESSION] PATH",
     "A path goes for good; its requests go over others."},
    {"remove", CtlVerb::remove, 1, 2, 0, "", ""},
    {"del", CtlVerb::remove, 1, 2, 0, "", ""},
    {"readd", CtlVerb::readd, 1, 2, kClient | kPath, "path readd [SESSION] PATH",
     "Delete a path and add it anew, with the same preference."},
    {"disconnect", CtlVerb::disconnect, 1, 2, kClient | kServer | kSession | kPath,
     "[client|server] disconnect [session] SESSION | [path] [SESSION] PATH",
     "Client: out of service until reconnect. Server: ended, and the client may come again."},
    {"reconnect", CtlVerb::reconnect, 1, 2, kClient | kSession | kPath,
     "reconnect [session] SESSION | [path] [SESSION] PATH",
     "Ends the connections and connects anew, at once."},
    {"recover", CtlVerb::recover, 1, 2, kClient | kDevice | kSession | kPath,
     "recover [device|session|path] NAME|all [add-missing]",
     "What is not connected connects at once; a bridge that has died starts."},
    {"close", CtlVerb::close, 1, 2, kServer | kDevice, "server close DEVICE [SESSION]",
     "Ends the sessions that have it open. Who only reads opens it again: `server reload` without "
     "the export, or the right to it, keeps him out."},
    {"udev", CtlVerb::udev, 1, 1, kClient | kDevice, "udev nbdN | NAME --wait SECONDS",
     "Name and UUID of a kernel's device, for rules of udev; or wait until its link is there."},
};

inline constexpr std::uint32_t bit_of(CtlVerb verb) { return 1U << static_cast<unsigned>(verb); }
inline constexpr std::uint32_t kOfLists = bit_of(CtlVerb::list) | bit_of(CtlVerb::show),
                               kOfMap = bit_of(CtlVerb::map),
                               kOfStart =
                                   kOfMap | bit_of(CtlVerb::remap) | bit_of(CtlVerb::recover),
                               kOfForce = bit_of(CtlVerb::unmap) | bit_of(CtlVerb::remap) |
                                          bit_of(CtlVerb::disconnect) | bit_of(CtlVerb::close),
                               kOfRecover = bit_of(CtlVerb::recover),
                               kOfJson = kOfLists | bit_of(CtlVerb::check),
                               kOfWait = kOfMap | bit_of(CtlVerb::udev) | bit_of(CtlVerb::add) |
                                         bit_of(CtlVerb::readd) | bit_of(CtlVerb::reconnect) |
                                         bit_of(CtlVerb::recover) | bit_of(CtlVerb::resize),
                               kOfSteps = kOfStart | kOfForce | kOfWait | bit_of(CtlVerb::remove),
                               kOfAll = ~0U;

/// A word that stands for itself, or with a value behind it.
struct OptionWord {
  std::string_view word;
  std::string_view value;  ///< "": none
  std::uint32_t verbs;     ///< a bit for each that it belongs to
  std::string_view help;   ///< "": another word for one that has it
  void (*set)(CtlAction& action, const std::string& value);
};
using Text = const std::string&;
inline constexpr OptionWord kOptions[] = {
    {"csv", "", kOfLists, "Values with commas between them.",
     [](CtlAction& action, Text) { action.format = CtlFormat::csv; }},
    {"json", "", kOfJson, "JSON; its keys are the names of the fields.",
     [](CtlAction& action, Text) { action.format = CtlFormat::json; }},
    {"xml", "", kOfLists, "XML; its elements are named as the fields.",
     [](CtlAction& action, Text) { action.format = CtlFormat::xml; }},
    {"notree", "", kOfLists, "Sessions without their paths below them.",
     [](CtlAction& action, Text) { action.tree = false; }},
    {"noheaders", "", kOfLists, "Without the line of headings.",
     [](CtlAction& action, Text) { action.headers = false; }},
    {"nototals", "", kOfLists, "Without the line of sums.",
     [](CtlAction& action, Text) { action.totals = false; }},
    {"all", "", kOfLists, "All fields.", [](CtlAction& action, Text) { action.all_fields = true; }},
    {"watch", "", kOfLists, "Again every second, until Ctrl-C.",
     [](CtlAction& action, Text) { action.watch = true; }},
    {"interval", "SECONDS", kOfLists, "Likewise, every so many seconds.",
     [](CtlAction& action, Text value) {
       action.watch = true;
       action.interval = value;
     }},
    {"from", "SERVER", kOfMap, "Whose device it is: HOST[:PORT].",
     [](CtlAction& action, Text value) { action.server = value; }},
    {"rdma", "", kOfMap, "Over RDMA; TCP unless you say so.",
     [](CtlAction& action, Text) { action.rdma = true; }},
    {"paths=auto", "", kOfMap, "Also over the addresses that the server advertises.",
     [](CtlAction& action, Text) { action.paths_of_server = true; }},
    {"ro", "", kOfMap, "Read only.", [](CtlAction& action, Text) { action.access = "ro"; }},
    {"rw", "", kOfMap, "For reading and writing.",
     [](CtlAction& action, Text) { action.access = "rw"; }},
    {"read-only", "", kOfMap, "", [](CtlAction& action, Text) { action.access = "ro"; }},
    {"readonly", "", kOfMap, "", [](CtlAction& action, Text) { action.access = "ro"; }},
    {"read-write", "", kOfMap, "", [](CtlAction& action, Text) { action.access = "rw"; }},
    {"migration", "", kOfMap, "For writing beside another writer, while a machine moves.",
     [](CtlAction& action, Text) { action.access = "migration"; }},
    {"name", "NAME", kOfMap, "Of the mapping; without it the last part of DEVICE.",
     [](CtlAction& action, Text value) { action.map_name = value; }},
    {"as", "nbdN", kOfMap, "This device of the kernel; without it the first that is free.",
     [](CtlAction& action, Text value) { action.kernel_device = value; }},
    {"persist", "", kOfMap, "Also after the next boot.",
     [](CtlAction& action, Text) { action.persist = true; }},
    {"bridge", "PROGRAM", kOfStart, "What to start where there is no systemd.",
     [](CtlAction& action, Text value) { action.bridge = value; }},
    {"wait", "SECONDS", kOfWait, "For how long at most; 0: not at all. Else 5, resize 30.",
     [](CtlAction& action, Text value) { action.wait = value; }},
    {"force", "", kOfForce, "Although somebody uses it, who gets EIO.",
     [](CtlAction& action, Text) { action.force = true; }},
    {"add-missing", "", kOfRecover, "Sessions: also paths that they had at first, and lack now.",
     [](CtlAction& action, Text) { action.add_missing = true; }},
    // Of IONOS's rnbd: all that is done is told in any case.
    {"verbose", "", kOfSteps, "", [](CtlAction&, Text) {}},
    {"root", "DIRECTORY", kOfAll, "Look at run, etc and sys in there.",
     [](CtlAction& action, Text value) { action.root = value; }},
};

/// The spelling that people are told. Dashes keep this one apart from a disk's name.
inline std::string as_told(const OptionWord& option) {
  return (option.word == "persist" ? "--" : "") + std::string{option.word} +
         (option.value.empty() ? "" : " ") + std::string{option.value};
}

/// A line of a help. A long left side has a line of its own.
std::string two_columns(std::string_view left, std::string_view right);

template <class Table>
auto find_word(const Table& table, std::string_view word) {
  const auto* const end = std::end(table);
  const auto* const found = std::ranges::find_if(
      std::begin(table), end, [word](const auto& each) { return each.word == word; });
  return found != end ? found : nullptr;
}

inline std::string_view without_dashes(std::string_view word) {
  return word.starts_with("--") ? word.substr(2) : word;
}

}  // namespace rnbd::ctl_words
