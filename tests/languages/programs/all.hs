module Main where

import Control.Concurrent (threadDelay)
import Control.Monad (forM_, forever)
import qualified Data.Map as Map
import System.Environment (getArgs)
import System.Exit (ExitCode (ExitFailure), exitWith)
import System.Posix.Process (forkProcess)

grow :: Map.Map Int String -> Int -> IO ()
grow held n = do
  let text = replicate 20000 (toEnum (97 + n `mod` 26))
  if length text < 0 then print held else grow (Map.insert n text held) (n + 1)

spin :: Integer -> IO ()
spin n = if n < 0 then print n else spin (n + 1)

run :: String -> [String] -> IO ()
run "echo" _ = getContents >>= putStr
run "words" rest = mapM_ putStrLn rest
run "text" _ = putStrLn "grüße 你好 🙂"
run "leave" _ = exitWith (ExitFailure 3)
run "wait" _ = forever (threadDelay 1000000)
run "spin" _ = spin 0
run "hog" _ = grow Map.empty 0
run "bomb" _ = forever (forkProcess (threadDelay 60000000))
run "flood" _ = forM_ [1 .. 100000 :: Int] (\_ -> putStrLn "a line of output")
run "file" _ = writeFile "note.txt" "kept\n" >> readFile "note.txt" >>= putStr
run name _ = error name

main :: IO ()
main = do
  name : rest <- getArgs
  run name rest
