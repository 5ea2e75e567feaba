#include "base/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace ark::json {
namespace {

constexpr int kMaxDepth = 200;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Value document() {
    Value result = value(0);
    skip_space();
    if (at_ != text_.size()) fail("expected the end of the text");
    return result;
  }

 private:
  [[noreturn]] void fail(std::string_view what) const {
    size_t line = 1, column = 1;
    for (char c : text_.substr(0, std::min(at_, text_.size()))) {
      ++column;
      if (c == '\n') ++line, column = 1;
    }
    std::string seen = at_ < text_.size() ? cat('\'', text_[at_], '\'') : "the end";
    throw UserError(cat("JSON, line ", line, ", column ", column, ": ", what, ", got ", seen));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }
  void expect_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail(cat("expected ", word));
    at_ += word.size();
  }

  Value value(int depth) {
    if (depth > kMaxDepth) fail(cat("expected at most ", kMaxDepth, " levels"));
    skip_space();
    switch (peek()) {
      case '{':
        return object(depth);
      case '[':
        return array(depth);
      case '"':
        return Value(string());
      case 't':
        return expect_word("true"), Value(true);
      case 'f':
        return expect_word("false"), Value(false);
      case 'n':
        return expect_word("null"), Value();
      default:
        return number();
    }
  }

  Value object(int depth) {
    Object members;
    ++at_;
    skip_space();
    if (peek() == '}') return ++at_, Value(std::move(members));
    while (true) {
      skip_space();
      if (peek() != '"') fail("expected a key");
      Member& member = members.emplace_back();
      member.key = string();
      for (size_t i = 0; i + 1 < members.size(); ++i)
        if (members[i].key == member.key) fail(cat("key \"", member.key, "\" given twice"));
      skip_space();
      if (peek() != ':') fail("expected ':'");
      ++at_;
      Value content = value(depth + 1);
      members.back().value = std::move(content);
      skip_space();
      if (peek() == '}') return ++at_, Value(std::move(members));
      if (peek() != ',') fail("expected ',' or '}'");
      ++at_;
    }
  }

  Value array(int depth) {
    Array items;
    ++at_;
    skip_space();
    if (peek() == ']') return ++at_, Value(std::move(items));
    while (true) {
      items.push_back(value(depth + 1));
      skip_space();
      if (peek() == ']') return ++at_, Value(std::move(items));
      if (peek() != ',') fail("expected ',' or ']'");
      ++at_;
    }
  }

  std::string string() {
    ++at_;
    std::string out;
    while (true) {
      size_t begin = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' && static_cast<uint8_t>(text_[at_]) >= 0x20)
        ++at_;
      out.append(text_.substr(begin, at_ - begin));
      if (at_ >= text_.size() || static_cast<uint8_t>(text_[at_]) < 0x20) fail("expected the end of a string");
      if (text_[at_++] == '"') return out;
      escape(out);
    }
  }

  void escape(std::string& out) {
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    char c = peek();
    if (size_t i = kFrom.find(c); c != '\0' && i != std::string_view::npos) {
      ++at_;
      out += kTo[i];
      return;
    }
    if (c != 'u') fail("expected an escape sequence");
    uint32_t code = unicode();
    if (code >= 0xd800 && code < 0xdc00) {
      if (peek() != '\\') fail("expected the second half of a surrogate pair");
      ++at_;
      uint32_t low = unicode();
      if (low < 0xdc00 || low > 0xdfff) fail("expected the second half of a surrogate pair");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code <= 0xdfff) {
      fail("expected the first half of a surrogate pair");
    }
    append_utf8(out, code);
  }

  uint32_t unicode() {
    if (peek() != 'u') fail("expected \\u");
    ++at_;
    uint32_t code = 0;
    auto digits = text_.substr(at_, 4);
    auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (error != std::errc() || end != digits.data() + 4) fail("expected four hexadecimal digits");
    at_ += 4;
    return code;
  }

  static void append_utf8(std::string& out, uint32_t code) {
    auto byte = [&](uint32_t x) { out += static_cast<char>(x); };
    if (code < 0x80) return byte(code);
    if (code < 0x800) return byte(0xc0 | code >> 6), byte(0x80 | (code & 63));
    if (code < 0x10000) return byte(0xe0 | code >> 12), byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63));
    byte(0xf0 | code >> 18), byte(0x80 | (code >> 12 & 63)), byte(0x80 | (code >> 6 & 63)), byte(0x80 | (code & 63));
  }

  Value number() {
    size_t begin = at_, p = at_;
    auto digit = [&] { return p < text_.size() && text_[p] >= '0' && text_[p] <= '9'; };
    auto digits = [&] {
      if (!digit()) fail("expected a value");
      while (digit()) ++p;
    };
    if (peek() == '-') ++p;
    if (p < text_.size() && text_[p] == '0') {
      ++p;
    } else {
      digits();
    }
    bool integer = true;
    if (p < text_.size() && text_[p] == '.') ++p, digits(), integer = false;
    if (p < text_.size() && (text_[p] == 'e' || text_[p] == 'E')) {
      ++p, integer = false;
      if (p < text_.size() && (text_[p] == '+' || text_[p] == '-')) ++p;
      digits();
    }
    at_ = p;
    return integer ? Value(convert<int64_t>(begin)) : Value(convert<double>(begin));
  }

  template <class T>
  T convert(size_t begin) const {
    T x{};
    auto [end, error] = std::from_chars(text_.data() + begin, text_.data() + at_, x);
    if (error != std::errc() || end != text_.data() + at_)
      throw UserError(cat("JSON: the number ", text_.substr(begin, at_ - begin), " does not fit"));
    return x;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

const char* Value::type_name() const {
  constexpr const char* kNames[] = {"null", "bool", "integer", "number", "string", "array", "object"};
  return kNames[data_.index()];
}

const Value* Value::find(std::string_view key) const {
  if (const Object* members = get_if<Object>())
    for (const Member& member : *members)
      if (member.key == key) return &member.value;
  return nullptr;
}

Value parse(std::string_view text) { return Parser(text).document(); }

void Writer::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (!first_) text_ += ',';
  if (depth_ > 0 && depth_ <= lines_depth_) {
    text_ += '\n';
    text_.append(static_cast<size_t>(depth_), ' ');
  } else if (!first_) {
    text_ += ' ';
  }
  first_ = false;
}

void Writer::open(char bracket) {
  separate();
  text_ += bracket;
  ++depth_;
  first_ = true;
}

void Writer::close(char bracket) {
  if (!first_ && depth_ <= lines_depth_) {
    text_ += '\n';
    text_.append(static_cast<size_t>(depth_ - 1), ' ');
  }
  --depth_;
  text_ += bracket;
  first_ = false;
}

void Writer::key(std::string_view name) {
  separate();
  quote(name);
  text_ += ": ";
  after_key_ = true;
}

void Writer::value(bool x) {
  separate();
  text_ += x ? "true" : "false";
}

void Writer::value(int64_t x) {
  separate();
  char buffer[24];
  text_.append(buffer, std::to_chars(buffer, buffer + sizeof(buffer), x).ptr);
}

void Writer::value(double x) {
  if (!std::isfinite(x)) return value(std::string_view(std::isnan(x) ? "nan" : x > 0 ? "inf" : "-inf"));
  separate();
  char buffer[32];
  char* end = std::to_chars(buffer, buffer + sizeof(buffer), x).ptr;
  bool integer = std::all_of(buffer, end, [](char c) { return c == '-' || (c >= '0' && c <= '9'); });
  text_.append(buffer, end);
  if (integer) text_ += ".0";
}

void Writer::value(std::string_view x) {
  separate();
  quote(x);
}

void Writer::null() {
  separate();
  text_ += "null";
}

void Writer::quote(std::string_view x) {
  constexpr char kHex[] = "0123456789abcdef";
  text_ += '"';
  for (char c : x) {
    auto byte = static_cast<uint8_t>(c);
    if (c == '"' || c == '\\') {
      text_ += '\\', text_ += c;
    } else if (c == '\n') {
      text_ += "\\n";
    } else if (byte < 0x20) {
      text_ += "\\u00", text_ += kHex[byte >> 4], text_ += kHex[byte & 15];
    } else {
      text_ += c;
    }
  }
  text_ += '"';
}

}  // namespace ark::json
