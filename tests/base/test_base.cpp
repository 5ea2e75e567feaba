// JSON reader and writer, environment reader.
#include <cmath>
#include <cstdlib>

#include "base/env.h"
#include "base/json.h"
#include "support/check.h"

using namespace ark;

namespace {

void write(json::Writer& out, const json::Value& v) {
  if (auto x = v.get_if<bool>()) return out.value(*x);
  if (auto x = v.get_if<int64_t>()) return out.value(*x);
  if (auto x = v.get_if<double>()) return out.value(*x);
  if (auto x = v.get_if<std::string>()) return out.value(std::string_view(*x));
  if (auto x = v.get_if<json::Array>()) {
    out.begin_array();
    for (const json::Value& item : *x) write(out, item);
    return out.end_array();
  }
  if (auto x = v.get_if<json::Object>()) {
    out.begin_object();
    for (const json::Member& m : *x) {
      out.key(m.key);
      write(out, m.value);
    }
    return out.end_object();
  }
  out.null();
}
std::string round_trip(std::string_view text, int lines_depth = 0) {
  json::Writer out(lines_depth);
  write(out, json::parse(text));
  return out.take();
}

void test_values() {
  EXPECT_EQ(round_trip("null"), "null");
  EXPECT_EQ(round_trip(" [ true , false ] "), "[true, false]");
  EXPECT_EQ(round_trip("{}"), "{}");
  EXPECT_EQ(round_trip("[]"), "[]");
  EXPECT_EQ(round_trip("{\"a\":{\"b\":[1,-2,3.5]},\"c\":[]}"), "{\"a\": {\"b\": [1, -2, 3.5]}, \"c\": []}");
  EXPECT_EQ(round_trip("[9223372036854775807, -9223372036854775808, 0]"),
            "[9223372036854775807, -9223372036854775808, 0]");
  EXPECT_EQ(round_trip("{\"a\":[1,2],\"b\":3}", 1), "{\n \"a\": [1, 2],\n \"b\": 3\n}");
  EXPECT(json::parse("1").get_if<int64_t>() != nullptr);
  EXPECT(json::parse("1.0").get_if<double>() != nullptr);
  EXPECT(json::parse("{\"x\": 7}").find("x") != nullptr);
  EXPECT(json::parse("{\"x\": 7}").find("y") == nullptr);
  EXPECT(json::parse("[7]").find("x") == nullptr);
  for (double x : {0.1, 1e300, 5e-324, -0.0, 1.0 / 3, 123456789.0, 1e22}) {
    json::Writer out;
    out.value(x);
    json::Value back = json::parse(out.take());
    EXPECT(back.get_if<double>() != nullptr);
    EXPECT_EQ(*back.get_if<double>(), x);
    EXPECT_EQ(std::signbit(*back.get_if<double>()), std::signbit(x));
  }
  for (auto [x, text] : {std::pair(NAN, "\"nan\""), {INFINITY, "\"inf\""}, {-INFINITY, "\"-inf\""}}) {
    json::Writer out;
    out.value(static_cast<double>(x));
    EXPECT_EQ(out.take(), text);
  }
}

void test_strings() {
  EXPECT_EQ(*json::parse(R"("\"\\\/\b\f\n\r\t")").get_if<std::string>(), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(*json::parse(R"("\u0041\u00e9\u20ac\ud83d\ude00")").get_if<std::string>(),
            "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  EXPECT_EQ(round_trip("\"\\u0001\\n\\\"\\\\ é\""), "\"\\u0001\\n\\\"\\\\ é\"");
  std::string zero("a\0b", 3);
  json::Writer out;
  out.value(std::string_view(zero));
  EXPECT_EQ(*json::parse(out.take()).get_if<std::string>(), zero);
}

void test_errors() {
  for (const char* text : {"",
                           "{",
                           "[",
                           "[1,]",
                           "{\"a\":1,}",
                           "{a:1}",
                           "[1 2]",
                           "01",
                           "1.",
                           ".5",
                           "-",
                           "+1",
                           "1e",
                           "tru",
                           "nulll",
                           "\"",
                           "\"\\x\"",
                           "\"\\u12\"",
                           "\"\\ud800\"",
                           "\"\\udc00\"",
                           "\"a\nb\"",
                           "[1]]",
                           "nan",
                           "'a'",
                           "{\"a\" 1}",
                           "\"\\ud800\\u0041\""}) {
    EXPECT_THROW(UserError, json::parse(text), "JSON, line");
  }
  EXPECT_THROW(UserError, json::parse("{\"a\": 1, \"a\": 2}"), "given twice");
  EXPECT_THROW(UserError, json::parse("9223372036854775808"), "does not fit");
  EXPECT_THROW(UserError, json::parse("[1,\n 2,\n x]"), "line 3, column 2: expected a value, got 'x'");
  EXPECT_THROW(UserError, json::parse(std::string(1000, '[')), "levels");
  EXPECT_EQ(std::string(json::parse(std::string(150, '[') + std::string(150, ']')).type_name()), "array");
}

void test_environment() {
  constexpr const char* kName = "ARK_TEST_VARIABLE";
  constexpr std::string_view kChoices[] = {"red", "green"};
  auto set = [&](const char* value) { setenv(kName, value, 1); };
  unsetenv(kName);
  EXPECT_EQ(env::text(kName, "x"), "x");
  EXPECT_EQ(env::integer(kName, 5, 0, 10), 5);
  EXPECT_EQ(env::flag(kName, true), true);
  EXPECT_EQ(env::choice(kName, kChoices, 1), 1);
  set("");
  EXPECT_EQ(env::integer(kName, 5, 0, 10), 5);
  set("7");
  EXPECT_EQ(env::integer(kName, 5, 0, 10), 7);
  EXPECT_THROW(UserError, env::integer(kName, 5, 0, 6), "ARK_TEST_VARIABLE: expected 0 to 6, got 7");
  EXPECT_THROW(UserError, env::flag(kName, true), "ARK_TEST_VARIABLE");
  for (const char* bad : {"7x", " 7", "7 ", "0x7", "1e3", "99999999999999999999"}) {
    set(bad);
    EXPECT_THROW(UserError, env::integer(kName, 5, 0, 10), bad);
  }
  set("on");
  EXPECT_EQ(env::flag(kName, false), true);
  set("0");
  EXPECT_EQ(env::flag(kName, true), false);
  set("green");
  EXPECT_EQ(env::choice(kName, kChoices, 0), 1);
  set("blue");
  EXPECT_THROW(UserError, env::choice(kName, kChoices, 0), "expected one of red, green, got \"blue\"");
  unsetenv(kName);
}

}  // namespace

int main() {
  test_values();
  test_strings();
  test_errors();
  test_environment();
  return test::result("base");
}
